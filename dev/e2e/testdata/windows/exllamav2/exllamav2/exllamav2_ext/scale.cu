void scale(float *x, long long n, float by) {
    for (long long i = 0; i < n; i++) x[i] *= by;
}
