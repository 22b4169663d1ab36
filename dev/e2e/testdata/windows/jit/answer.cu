// Plain C++: the stand-in of nvcc has no device compiler behind it.
#include "answer.h"

long answer_of_device() { return 42; }
