#include "backend/cuda/cublas.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <utility>

namespace headwise::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// Prompts have many lengths; plans are small, but not free.
constexpr size_t kMaxPlans = 512;
// The first with scales for each row and each output of products in FP8.
constexpr size_t kFp8Version = 120900;

}  // namespace

struct Cublas::Library {
  void* file = nullptr;
  cublasLtHandle_t handle = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm = nullptr;
  decltype(&cublasLtMatmulDescCreate) make_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) drop_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) drop_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) drop_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;

  ~Library() {
    if (handle != nullptr) destroy(handle);
    // Left loaded: it owns threads and device memory whose end nobody waits for.
  }
  template <typename Function>
  bool Find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(file, name));
    return function != nullptr;
  }
  bool Open() {
    for (const char* name : {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "libcublasLt.so.12",
                             "/usr/local/cuda/lib64/libcublasLt.so.12"}) {
      file = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (file != nullptr) break;
    }
    return file != nullptr && Find("cublasLtCreate", create) && Find("cublasLtDestroy", destroy) &&
           Find("cublasLtGetVersion", version) && Find("cublasLtMatmul", matmul) &&
           Find("cublasLtMatmulAlgoGetHeuristic", find_algorithm) && Find("cublasLtMatmulDescCreate", make_operation) &&
           Find("cublasLtMatmulDescDestroy", drop_operation) && Find("cublasLtMatmulDescSetAttribute", set_operation) &&
           Find("cublasLtMatrixLayoutCreate", make_layout) && Find("cublasLtMatrixLayoutDestroy", drop_layout) &&
           Find("cublasLtMatmulPreferenceCreate", make_preference) &&
           Find("cublasLtMatmulPreferenceDestroy", drop_preference) &&
           Find("cublasLtMatmulPreferenceSetAttribute", set_preference) && create(&handle) == CUBLAS_STATUS_SUCCESS;
  }
};

// cuBLAS stores columns: out^T [N, T] = W [K, N]^T x^T [K, T].
struct Cublas::Plan {
  const Library& library;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Plan(const Library& used) : library(used) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (operation != nullptr) library.drop_operation(operation);
    for (const cublasLtMatrixLayout_t layout : {weight, x, out}) {
      if (layout != nullptr) library.drop_layout(layout);
    }
  }

  bool Make(const Key& key, const DeviceBuffer& workspace) {
    const size_t workspace_bytes = workspace.size_bytes();
    const auto [num_rows, num_outputs, depth, out_stride, adds, has_bias, is_fp8] = key;
    const auto ok = [](cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; };
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const cudaDataType_t bias_type = CUDA_R_32F;
    const cudaDataType_t type = is_fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    bool is_made =
        ok(library.make_operation(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
        ok(library.set_operation(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed))) &&
        ok(library.set_operation(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue))) &&
        ok(library.make_layout(&weight, type, static_cast<uint64_t>(depth), static_cast<uint64_t>(num_outputs),
                               depth)) &&
        ok(library.make_layout(&x, type, static_cast<uint64_t>(depth), static_cast<uint64_t>(num_rows), depth)) &&
        ok(library.make_layout(&out, CUDA_R_32F, static_cast<uint64_t>(num_outputs), static_cast<uint64_t>(num_rows),
                               out_stride));
    if (is_made && has_bias) {
      is_made =
          ok(library.set_operation(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof(bias_type)));
    }
    if (is_made && is_fp8) {
      const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      const int8_t is_fast = 1;
      // No algorithm is found without any.
      const auto* any_scales = reinterpret_cast<const float*>(workspace.data());
      is_made = ok(library.set_operation(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof(mode))) &&
                ok(library.set_operation(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof(mode))) &&
                ok(library.set_operation(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &is_fast, sizeof(is_fast))) &&
                SetScales(any_scales, any_scales);
    }
    cublasLtMatmulPreference_t preference = nullptr;
    if (!is_made || !ok(library.make_preference(&preference))) return false;
    library.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                           sizeof(workspace_bytes));
    cublasLtMatmulHeuristicResult_t found{};
    int num_found = 0;
    const cublasStatus_t status =
        library.find_algorithm(library.handle, operation, weight, x, out, out, preference, 1, &found, &num_found);
    library.drop_preference(preference);
    algorithm = found.algo;
    return ok(status) && num_found > 0;
  }
  bool SetScales(const float* weight_scales, const float* x_scales) const {
    return library.set_operation(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &weight_scales,
                                 sizeof(weight_scales)) == CUBLAS_STATUS_SUCCESS &&
           library.set_operation(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x_scales, sizeof(x_scales)) ==
               CUBLAS_STATUS_SUCCESS;
  }
};

Cublas::Cublas(CudaDevice& device, std::unique_ptr<Library> library) : device_(device), library_(std::move(library)) {}
Cublas::~Cublas() = default;

std::unique_ptr<Cublas> Cublas::Load(CudaDevice& device) {
  auto library = std::make_unique<Library>();
  if (!library->Open()) return nullptr;
  std::unique_ptr<Cublas> cublas(new Cublas(device, std::move(library)));
  Result<DeviceBuffer> workspace = DeviceBuffer::Make(device, kWorkspaceBytes);
  if (!workspace.ok()) return nullptr;
  cublas->workspace_ = *std::move(workspace);
  return cublas;
}

Cublas::Plan* Cublas::PlanFor(const Key& key) {
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second.get();
  if (plans_.size() >= kMaxPlans) plans_.clear();
  auto plan = std::make_unique<Plan>(*library_);
  if (!plan->Make(key, workspace_)) plan = nullptr;
  return (plans_[key] = std::move(plan)).get();
}

bool Cublas::HasFp8() const {
  const DeviceFacts& facts = device_.facts();
  return facts.major == 9 && facts.minor == 0 && library_->version() >= kFp8Version;
}

void Cublas::MatMul(const ConstTensorView& x, const MatMulPart& part, MatMulArgs::Write write, int64_t out_stride) {
  Put({.cublas = this,
       .num_rows = x.shape[0],
       .num_outputs = part.weight.shape[0],
       .depth = x.shape[1],
       .out_stride = out_stride > 0 ? out_stride : part.weight.shape[0],
       .adds = write == MatMulArgs::Write::kAdd ? 1 : 0,
       .x = x.data,
       .weight = part.weight.rows().data,
       .bias = part.bias.data,
       .x_scales = nullptr,
       .weight_scales = nullptr,
       .out = part.out.data});
}

void Cublas::MatMulFp8(const Fp8Rows& x, const Shape& shape, const Fp8Rows& weight, const TensorView& out,
                       MatMulArgs::Write write) {
  Put({.cublas = this,
       .num_rows = shape[0],
       .num_outputs = out.shape[1],
       .depth = shape[1],
       .out_stride = out.shape[1],
       .adds = write == MatMulArgs::Write::kAdd ? 1 : 0,
       .x = x.codes,
       .weight = weight.codes,
       .bias = nullptr,
       .x_scales = x.scales,
       .weight_scales = weight.scales,
       .out = out.data});
}

void Cublas::Put(Product product) {
  if (!device_.ok()) return;
  void* const args[] = {&product};
  constexpr uint32_t kBytes[] = {sizeof(product)};
  const auto call = [](void* const* recorded, cudaStream_t stream) {
    const Product& found = *static_cast<const Product*>(recorded[0]);
    return found.cublas->Run(found, stream);
  };
  device_.Put({.call = call, .operation = "MatMul: cuBLASLt", .shape = {}, .num_args = 1}, args, kBytes);
}

cudaError_t Cublas::Run(const Product& product, cudaStream_t stream) {
  const bool has_bias = product.bias != nullptr;
  const bool is_fp8 = product.x_scales != nullptr;
  Plan* const plan = PlanFor(
      {product.num_rows, product.num_outputs, product.depth, product.out_stride, product.adds != 0, has_bias, is_fp8});
  if (plan == nullptr) return cudaErrorNotSupported;
  if (is_fp8) plan->SetScales(product.weight_scales, product.x_scales);
  if (has_bias) {
    library_->set_operation(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &product.bias, sizeof(product.bias));
  }
  const float one = 1;
  const float kept = product.adds != 0 ? 1.0f : 0.0f;
  const cublasStatus_t status = library_->matmul(
      library_->handle, plan->operation, &one, product.weight, plan->weight, product.x, plan->x, &kept, product.out,
      plan->out, product.out, plan->out, &plan->algorithm, workspace_.data(), kWorkspaceBytes, stream);
  const cudaError_t error = cudaGetLastError();
  return status == CUBLAS_STATUS_SUCCESS || error != cudaSuccess ? error : cudaErrorUnknown;
}

}  // namespace headwise::cuda
