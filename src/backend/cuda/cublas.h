// Products of many rows by cuBLASLt, which is loaded when it is first wanted: it is hundreds of megabytes, and what is
// here runs without it, slower.
#ifndef HEADWISE_BACKEND_CUDA_CUBLAS_H_
#define HEADWISE_BACKEND_CUDA_CUBLAS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/ops.h"

namespace headwise::cuda {

// Thread-safety: none. The device must outlive it.
class Cublas {
 public:
  // Null where the library is not found.
  static std::unique_ptr<Cublas> Load(CudaDevice& device);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // out = x W^T + bias [T, N] f32, or added to what is there. `x` and the weight [N, K] are bf16. A launch among
  // others: steps that have the same are replayed with it.
  void MatMul(const ConstTensorView& x, const MatMulPart& part, MatMulArgs::Write write, int64_t out_stride = 0);

  // Whether MatMulFp8 is there: on compute capability 9.0, from version 12.9 of the library on.
  bool HasFp8() const;
  // The same without bias, of `shape` [T, K] codes of x and [N, K] of the weight. N and K are multiples of 16. Sums are
  // of the tensor cores' own precision, 14 bits or so: less than a hundredth of a row's norm is lost, where rounding to
  // e4m3 loses some four.
  void MatMulFp8(const Fp8Rows& x, const Shape& shape, const Fp8Rows& weight, const TensorView& out,
                 MatMulArgs::Write write);

 private:
  struct Library;
  struct Plan;
  // What a record holds of a product: no padding.
  struct Product {
    Cublas* cublas;
    int64_t num_rows, num_outputs, depth;   // T, N, K
    int64_t out_stride;                     // between rows of out
    int64_t adds;                           // 0 or 1
    const void *x, *weight, *bias;          // bias: or null
    const float *x_scales, *weight_scales;  // of FP8, else null
    void* out;
  };
  // By rows, outputs, depth, stride of out, whether it adds, whether there is a bias, whether it is in FP8.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool, bool>;

  Cublas(CudaDevice& device, std::unique_ptr<Library> library);
  Plan* PlanFor(const Key& key);
  void Put(Product product);
  cudaError_t Run(const Product& product, cudaStream_t stream);

  CudaDevice& device_;
  std::unique_ptr<Library> library_;
  DeviceBuffer workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_CUBLAS_H_
