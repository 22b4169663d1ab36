#include "wincount.h"

long long add_numbers(const long long *numbers, size_t n) {
    long long sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += numbers[i];
    return sum;
}
