double sum(const float *x, long long n) {
    double total = 0;
    for (long long i = 0; i < n; i++) total += x[i];
    return total;
}
