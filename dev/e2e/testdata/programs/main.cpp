#include <cstdio>
int main(int argc, char **) { std::printf("a program with %d arguments\n", argc - 1); }
