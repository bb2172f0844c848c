#include "grad/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

extern "C" {  // of OpenBLAS; its header's name differs between distributions
int openblas_get_num_threads();
void openblas_set_num_threads(int num_threads);
}

namespace headwise {
namespace {

// The program's own setting, whatever a test makes of it.
class HostThreads {
 public:
  explicit HostThreads(int num_threads) { openblas_set_num_threads(num_threads); }
  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;
  ~HostThreads() { openblas_set_num_threads(before_); }

 private:
  int before_ = openblas_get_num_threads();
};

template <typename Real>
struct Problem {
  Transpose transpose_a, transpose_b;
  int64_t m, n, k;
  Real alpha, beta;

  // Strides are three more than a row: what lies between rows is nobody's.
  int64_t a_stride() const { return (transpose_a == Transpose::kYes ? m : k) + 3; }
  int64_t b_stride() const { return (transpose_b == Transpose::kYes ? k : n) + 3; }
  int64_t c_stride() const { return n + 3; }
};

template <typename Real>
std::vector<Real> RandomNumbers(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<Real> normal;
  std::vector<Real> numbers(static_cast<size_t>(n));
  for (Real& number : numbers) number = normal(rng);
  return numbers;
}

template <typename Real>
struct Data {
  explicit Data(const Problem<Real>& p)
      : a(RandomNumbers<Real>((p.transpose_a == Transpose::kYes ? p.k : p.m) * p.a_stride(), 1)),
        b(RandomNumbers<Real>((p.transpose_b == Transpose::kYes ? p.n : p.k) * p.b_stride(), 2)),
        c(RandomNumbers<Real>(p.m * p.c_stride(), 3)) {}
  std::vector<Real> a, b, c;
};

template <typename Real>
std::vector<Real> Product(const Problem<Real>& p) {
  Data<Real> data(p);
  Gemm(GemmArgs<Real>{.transpose_a = p.transpose_a,
                      .transpose_b = p.transpose_b,
                      .m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .alpha = p.alpha,
                      .a = data.a.data(),
                      .a_stride = p.a_stride(),
                      .b = data.b.data(),
                      .b_stride = p.b_stride(),
                      .beta = p.beta,
                      .c = data.c.data(),
                      .c_stride = p.c_stride()});
  return data.c;
}

// Of sizes on both sides of what is computed in one piece.
template <typename Real>
std::vector<Problem<Real>> Problems() {
  std::vector<Problem<Real>> problems;
  for (const Transpose transpose_a : {Transpose::kNo, Transpose::kYes}) {
    for (const Transpose transpose_b : {Transpose::kNo, Transpose::kYes}) {
      problems.push_back({transpose_a, transpose_b, 3, 5, 7, Real{1}, Real{0}});
      problems.push_back({transpose_a, transpose_b, 130, 301, 517, Real{0.5}, Real{1}});
      problems.push_back({transpose_a, transpose_b, 1, 700, 900, Real{1}, Real{0}});
      problems.push_back({transpose_a, transpose_b, 400, 1, 1000, Real{1}, Real{-2}});
    }
  }
  return problems;
}

template <typename Real>
void CheckProducts(double tolerance) {
  for (const Problem<Real>& p : Problems<Real>()) {
    const Data<Real> data(p);
    const std::vector<Real> found = Product(p);
    for (int64_t row = 0; row < p.m; ++row) {
      for (int64_t column = 0; column < p.c_stride(); ++column) {
        const auto at = static_cast<size_t>(row * p.c_stride() + column);
        if (column >= p.n) {
          ASSERT_EQ(found[at], data.c[at]) << "written between rows";
          continue;
        }
        double sum = 0;
        for (int64_t i = 0; i < p.k; ++i) {
          const int64_t a = p.transpose_a == Transpose::kYes ? i * p.a_stride() + row : row * p.a_stride() + i;
          const int64_t b = p.transpose_b == Transpose::kYes ? column * p.b_stride() + i : i * p.b_stride() + column;
          sum += static_cast<double>(data.a[static_cast<size_t>(a)]) * data.b[static_cast<size_t>(b)];
        }
        const double expected = p.alpha * sum + p.beta * data.c[at];
        ASSERT_NEAR(found[at], expected, tolerance * std::sqrt(static_cast<double>(p.k)))
            << p.m << " " << p.n << " " << p.k << " row " << row << " column " << column;
      }
    }
  }
}

TEST(Gemm, IsTheProduct) {
  CheckProducts<float>(4e-6);
  CheckProducts<double>(1e-14);
}

// beta 0 overwrites even what is no number.
TEST(Gemm, WithoutBetaWhatWasThereDoesNotCount) {
  const std::vector<float> a(300 * 300, 1.0f);
  std::vector<float> c(300 * 300, NAN);
  Gemm(GemmArgs<float>{.m = 300,
                       .n = 300,
                       .k = 300,
                       .a = a.data(),
                       .a_stride = 300,
                       .b = a.data(),
                       .b_stride = 300,
                       .c = c.data(),
                       .c_stride = 300});
  for (const float value : c) ASSERT_EQ(value, 300.0f);
}

// How many threads OpenBLAS has is the program's to say, for all that it computes: here it stays what it is, and
// decides no bit.
TEST(Gemm, LeavesTheProgramsThreadsAlone) {
  for (const Problem<float>& p : Problems<float>()) {
    std::vector<float> with_one, with_two;
    {
      const HostThreads one(1);
      with_one = Product(p);
      EXPECT_EQ(openblas_get_num_threads(), 1);
    }
    {
      const HostThreads two(2);
      with_two = Product(p);
      EXPECT_EQ(openblas_get_num_threads(), 2);
    }
    EXPECT_EQ(with_one, with_two) << p.m << " " << p.n << " " << p.k;
  }
}

}  // namespace
}  // namespace headwise
