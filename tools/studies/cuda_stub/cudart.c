/* Those of CUDA's runtime functions whose answers ONNX Runtime looks at. There is no GPU: device
 * memory is the host's, a launched kernel does nothing, and what is copied or waited for while a
 * graph is captured is told, since a graph must not hold either. What a captured graph launches is
 * noted by name (stub_work). __main__.py adds the other functions, which answer that all went well. */

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int capturing = 0;

static void told(const char *what) {
  if (capturing) fprintf(stderr, "captured: %s\n", what);
}

enum { MOST_KERNELS = 1 << 16, MOST_WORK = 1 << 14 };
static struct { const void *host; const char *name; } kernels[MOST_KERNELS];
static const char *work[MOST_WORK];
static int registered = 0, noted = 0;

/* What the last captured graph launches, by number; null after the last. */
const char *stub_work(int number) { return number < noted ? work[number] : NULL; }

/* Other libraries' stubs call it, too. */
void stub_launched(const char *name) {
  if (capturing && noted < MOST_WORK) work[noted++] = name;
}

static cudaError_t launched(const void *host) {
  for (int i = 0; i < registered; i++)
    if (kernels[i].host == host) {
      stub_launched(kernels[i].name);
      return cudaSuccess;
    }
  stub_launched("unknown kernel");
  return cudaSuccess;
}

void __cudaRegisterFunction(void **code, const char *host, char *device, const char *name) {
  if (registered == MOST_KERNELS) return;
  kernels[registered].host = host;
  kernels[registered++].name = name;
}
cudaError_t __cudaGetKernel(const void **kernel, const void *host) {
  *kernel = host;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(const void *kernel) { return launched(kernel); }
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
  return launched(kernel);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                void **arguments) {
  return launched(kernel);
}
cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block,
                                        void **arguments, size_t shared, cudaStream_t stream) {
  return launched(kernel);
}
cudaError_t cudaMemsetAsync(void *place, int value, size_t size, cudaStream_t stream) {
  stub_launched("cudaMemsetAsync");
  memset(place, value, size);
  return cudaSuccess;
}

static cudaError_t allocated(void **place, size_t size) {
  *place = aligned_alloc(512, (size + 511) / 512 * 512 + 512);
  return *place ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMalloc(void **place, size_t size) {
  told("cudaMalloc");
  return allocated(place, size);
}
cudaError_t cudaMallocHost(void **place, size_t size) { return allocated(place, size); }
cudaError_t cudaHostAlloc(void **place, size_t size, unsigned flags) {
  return allocated(place, size);
}
cudaError_t cudaFree(void *place) { free(place); return cudaSuccess; }
cudaError_t cudaFreeHost(void *place) { free(place); return cudaSuccess; }

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  told("cudaMemcpy, which waits");
  memmove(to, from, size);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyDeviceToDevice) told("a copy from or to the host");
  stub_launched("cudaMemcpyAsync");
  memmove(to, from, size);
  return cudaSuccess;
}

/* Kernels say there how much shared memory they need. */
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset,
                                 enum cudaMemcpyKind kind) {
  memset(to, 0, size);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  told("cudaStreamSynchronize");
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t error) { return "stub"; }
const char *cudaGetErrorString(cudaError_t error) { return "stub"; }

/* The numbers of an H200, as far as kernels are chosen by them. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *it, int device) {
  memset(it, 0, sizeof *it);
  strcpy(it->name, "stub");
  it->major = 9;
  it->multiProcessorCount = 132;
  it->totalGlobalMem = 140ull << 30;
  it->warpSize = 32;
  it->maxThreadsPerBlock = 1024;
  it->maxThreadsPerMultiProcessor = 2048;
  it->sharedMemPerBlock = 48 << 10;
  it->sharedMemPerBlockOptin = 227 << 10;
  it->sharedMemPerMultiprocessor = 228 << 10;
  it->regsPerBlock = 65536;
  it->maxGridSize[0] = 2147483647;
  it->maxGridSize[1] = it->maxGridSize[2] = 65535;
  it->maxThreadsDim[0] = it->maxThreadsDim[1] = 1024;
  it->maxThreadsDim[2] = 64;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp it;
  cudaGetDeviceProperties(&it, device);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = it.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = it.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = it.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = it.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = it.sharedMemPerBlockOptin; break;
    default: *value = 1;
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
  *left = *total = 140ull << 30;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *it) { *it = (void *)1; return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *it, unsigned flags) {
  *it = (void *)2;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *it, unsigned flags) {
  *it = (void *)3;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  capturing = 1;
  noted = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  capturing = 0;
  *graph = (void *)4;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *it, cudaGraph_t graph,
                                 unsigned long long flags) {
  *it = (void *)5;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t it, cudaStream_t stream) {
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *it, const void *place) {
  memset(it, 0, sizeof *it);
  it->type = cudaMemoryTypeDevice;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *it, const void *kernel) {
  memset(it, 0, sizeof *it);
  it->maxThreadsPerBlock = 1024;
  it->binaryVersion = it->ptxVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                                   int threads, size_t shared,
                                                                   unsigned flags) {
  *blocks = 1;
  return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *code) { static void *handle; return &handle; }
