#ifdef GGML_CUDA
int ggml_cuda_add(const float *a, float *b, int n);
extern "C" int llama_answer() { return 41 + ggml_cuda_add(nullptr, nullptr, 0); }
#else
extern "C" int llama_answer() { return 42; }
#endif
