/* A program as users write them: the header, the library, no GPU. It ends with the line of what is
 * wrong. */
#include <kiln.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                     \
	do {                                                                     \
		if (!(condition)) {                                                  \
			char text[256];                                                  \
			kiln_last_error(text, sizeof text);                              \
			fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, text); \
			exit(1);                                                         \
		}                                                                    \
	} while (0)

/* Half precision of a small whole number or a multiple of 1/2, and back. */
static uint16_t half(float f) {
	uint32_t u;
	memcpy(&u, &f, 4);
	if (f == 0) return 0;
	return (u >> 16 & 0x8000) | ((int)(u >> 23 & 0xFF) - 127 + 15) << 10 | (u >> 13 & 0x3FF);
}

static float number(uint16_t h) {
	float m = h & 0x3FF;
	int e = h >> 10 & 0x1F;
	float f = e == 0 ? ldexpf(m, -24) : ldexpf(m + 1024, e - 25);
	return h & 0x8000 ? -f : f;
}

enum { K = 64, N = 32, M = 5, GROUPS = 2 };

static uint32_t qweight[K / 8][N], qzeros[GROUPS][N / 8];
static uint16_t scales[GROUPS][N], bias[N], x[M][K], y[M][N], w[K][N];

static kiln_tensor tensor(const void *data, int32_t dtype, int32_t dims, int64_t rows, int64_t cols) {
	return (kiln_tensor){.data = data, .dtype = dtype, .dims = dims, .shape = {rows, cols}, .device = KILN_HOST};
}

static kiln_gptq gptq(void) {
	return (kiln_gptq){
		.size = sizeof(kiln_gptq), .device = KILN_HOST,
		.qweight = tensor(qweight, KILN_I32, 2, K / 8, N), .qzeros = tensor(qzeros, KILN_I32, 2, GROUPS, N / 8),
		.scales = tensor(scales, KILN_F16, 2, GROUPS, N), .bias = tensor(bias, KILN_F16, 1, N, 0),
	};
}

static int code(int k, int n) { return (3 * k + 5 * n) % 16; }

/* Errors of threads do not mix. */
static void *other_thread(void *unused) {
	char text[256];
	(void)unused;
	kiln_last_error(text, sizeof text);
	CHECK(text[0] == 0);
	CHECK(kiln_free(987654) == KILN_ERROR_HANDLE);
	kiln_last_error(text, sizeof text);
	CHECK(strstr(text, "987654"));
	return 0;
}

int main(void) {
	char text[256];
	CHECK(kiln_abi_version() == KILN_ABI_VERSION);
	CHECK(kiln_version(text, sizeof text) == KILN_OK && text[0]);
	CHECK(kiln_describe(KILN_HOST, text, sizeof text) == KILN_OK && strstr(text, "cpu"));
	memset(text, 'x', sizeof text);
	CHECK(kiln_describe(KILN_HOST, text, 3) == KILN_OK && strcmp(text, "cp") == 0 && text[3] == 'x');

	for (int k = 0; k < K; k++)
		for (int n = 0; n < N; n++) qweight[k / 8][n] |= (uint32_t)code(k, n) << k % 8 * 4;
	for (int g = 0; g < GROUPS; g++)
		for (int n = 0; n < N; n++) {
			qzeros[g][n / 8] |= 7u << n % 8 * 4; /* zero point 8 */
			scales[g][n] = half(g == 0 ? 0.5f : 0.25f);
		}
	for (int n = 0; n < N; n++) bias[n] = half(n);
	for (int m = 0; m < M; m++)
		for (int k = 0; k < K; k++) x[m][k] = half((m + k) % 3 - 1);

	uint32_t before[K / 8][N];
	memcpy(before, qweight, sizeof before);
	kiln_gptq in = gptq();
	kiln_matrix matrix = 0, second = 0;
	CHECK(kiln_make_gptq(&in, &matrix) == KILN_OK && matrix != 0);
	CHECK(kiln_make_gptq(&in, &second) == KILN_OK && second != matrix);
	CHECK(memcmp(before, qweight, sizeof before) == 0);

	kiln_info info = {.size = sizeof info};
	CHECK(kiln_matrix_info(matrix, &info) == KILN_OK);
	CHECK(info.rows == K && info.cols == N && info.gptq == 1 && info.groups == GROUPS && info.bias == 1 && info.device == KILN_HOST);
	CHECK(info.bytes > 0 && info.bits_per_weight == 5.625); /* 4, scales and zero points 0.625, g_idx 1 */

	CHECK(kiln_dequantize(matrix, w, K, N, 0) == KILN_OK);
	for (int k = 0; k < K; k++)
		for (int n = 0; n < N; n++) CHECK(number(w[k][n]) == (code(k, n) - 8) * (k < K / GROUPS ? 0.5f : 0.25f));

	/* Whole quarters below 512: the result is exact. */
	for (int round = 0; round < 3; round++) {
		uint32_t flags[] = {0, KILN_NO_BIAS, KILN_ACCUMULATE | KILN_RECONSTRUCT};
		memset(y, 0, sizeof y);
		CHECK(kiln_gemm(matrix, x, M, K, y, M, N, flags[round], 0) == KILN_OK);
		for (int m = 0; m < M; m++)
			for (int n = 0; n < N; n++) {
				float want = round == 1 ? 0 : n;
				for (int k = 0; k < K; k++) want += number(x[m][k]) * number(w[k][n]);
				CHECK(number(y[m][n]) == want);
			}
	}
	CHECK(kiln_gemm(matrix, x, 0, K, y, 0, N, 0, 0) == KILN_OK);

	static uint16_t one[M][N], two[M][N];
	kiln_product products[] = {{matrix, one, N}, {second, two, N}};
	CHECK(kiln_gemm(matrix, x, M, K, y, M, N, 0, 0) == KILN_OK);
	CHECK(kiln_gemm_many(products, 2, x, M, K, 0, 0) == KILN_OK);
	CHECK(memcmp(one, y, sizeof y) == 0 && memcmp(two, y, sizeof y) == 0);
	CHECK(kiln_gemm_many(0, 0, x, M, K, 0, 0) == KILN_OK);
	CHECK(kiln_gemm_many(0, 1, x, M, K, 0, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_gemm_many(products, -1, x, M, K, 0, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_gemm_many(products, 2, x, M, K, 64, 0) == KILN_ERROR_ARGUMENT);
	memset(one, 1, sizeof one);
	products[1].matrix = 987654;
	CHECK(kiln_gemm_many(products, 2, x, M, K, 0, 0) == KILN_ERROR_HANDLE && one[0][0] == 0x0101);

	/* On the CPU nothing is in place, and nothing is changed. */
	in = gptq();
	in.flags = KILN_IN_PLACE;
	kiln_matrix placed = 0;
	CHECK(kiln_make_gptq(&in, &placed) == KILN_OK && kiln_matrix_info(placed, &info) == KILN_OK && info.in_place == 0);
	CHECK(memcmp(before, qweight, sizeof before) == 0 && kiln_free(placed) == KILN_OK);
	in.flags = 8;
	CHECK(kiln_make_gptq(&in, &placed) == KILN_ERROR_ARGUMENT);

	CHECK(kiln_gemm(matrix, x, M, K - 1, y, M, N, 0, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_gemm(matrix, x, M, K, y, M - 1, N, 0, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_gemm(matrix, x, M, K, y, M, N + 1, 0, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_gemm(matrix, 0, M, K, y, M, N, 0, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_gemm(matrix, x, -1, K, y, -1, N, 0, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_gemm(matrix, x, M, K, y, M, N, 64, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_dequantize(matrix, w, N, K, 0) == KILN_ERROR_ARGUMENT);
	CHECK(kiln_make_gptq(0, &second) == KILN_ERROR_ARGUMENT);
	in.size--;
	CHECK(kiln_make_gptq(&in, &second) == KILN_ERROR_ARGUMENT);
	in = gptq();
	in.qzeros.data = 0;
	CHECK(kiln_make_gptq(&in, &second) == KILN_ERROR_FORMAT);
	in = gptq();
	in.bias.shape[0] = N - 1;
	CHECK(kiln_make_gptq(&in, &second) == KILN_ERROR_FORMAT);
	in = gptq();
	in.scales.shape[0] = -1;
	CHECK(kiln_make_gptq(&in, &second) == KILN_ERROR_FORMAT);
	in = gptq();
	in.scales.dtype = 77;
	CHECK(kiln_make_gptq(&in, &second) == KILN_ERROR_ARGUMENT);
	in = gptq();
	in.device = -2;
	CHECK(kiln_make_gptq(&in, &second) == KILN_ERROR_ARGUMENT);
	kiln_exl2 empty = {.size = sizeof empty, .device = KILN_HOST};
	CHECK(kiln_make_exl2(&empty, &second) == KILN_ERROR_FORMAT);
	kiln_last_error(text, sizeof text);
	CHECK(strstr(text, "q_weight") && strstr(text, "missing"));

	CHECK(kiln_free(matrix) == KILN_OK);
	CHECK(kiln_free(matrix) == KILN_ERROR_HANDLE);
	CHECK(kiln_gemm(matrix, x, M, K, y, M, N, 0, 0) == KILN_ERROR_HANDLE);
	CHECK(kiln_free(second) == KILN_OK);
	CHECK(kiln_free(0) == KILN_ERROR_HANDLE);

	pthread_t thread;
	CHECK(pthread_create(&thread, 0, other_thread, 0) == 0 && pthread_join(thread, 0) == 0);
	kiln_last_error(text, sizeof text);
	CHECK(strstr(text, "matrix 0"));

	int32_t count = -1;
	int32_t status = kiln_device_count(&count);
	if (status == KILN_OK) {
		kiln_device_info device = {.size = sizeof device};
		CHECK(count == 0 || (kiln_device(0, &device) == KILN_OK && device.major > 0));
		CHECK(kiln_device(count, &device) == KILN_ERROR_ARGUMENT);
	} else {
		CHECK(status == KILN_ERROR_NOT_SUPPORTED);
		kiln_last_error(text, sizeof text);
		CHECK(strstr(text, "no NVIDIA driver"));
		in = gptq();
		in.device = 0;
		CHECK(kiln_make_gptq(&in, &second) == KILN_ERROR_NOT_SUPPORTED);
	}
	puts("ok");
	return 0;
}
