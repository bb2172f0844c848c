// Keys and values that are written into pages, however many at once and from wherever in a group of slots on: what is
// read again is their rounding to the cache's format, NaN too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/backends.h"
#include "support/head_pages.h"
#include "support/random_rows.h"
#include "support/read_token.h"
#include "tensor/dtype.h"

namespace headwise {
namespace {

constexpr int64_t kPageTokens = 32;

struct Format {
  const char* name;
  KvFormat format;
  DType dtype;
};
constexpr Format kFormats[] = {{"f32", KvFormat::kF32, DType::kF32},
                               {"f16", KvFormat::kF16, DType::kF16},
                               {"bf16", KvFormat::kBF16, DType::kBF16}};

Floats Rounded(const Floats& values, DType dtype) {
  Floats rounded(values.size());
  std::vector<std::byte> bytes(BytesOf(dtype, static_cast<int64_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreF32As(dtype, bytes.data(), static_cast<int64_t>(i), values[i]);
    rounded[i] = LoadAsF32(dtype, bytes.data(), static_cast<int64_t>(i));
  }
  return rounded;
}

// A head whose pages held `before` in every byte.
class Head {
 public:
  Head(Backend& backend, const KvLayout& layout, int64_t num_tokens, std::byte before)
      : backend_(backend), layout_(layout) {
    const std::vector<std::byte> bytes(backend.PageBytes(layout), before);
    for (int64_t i = 0; i * kPageTokens < num_tokens; ++i) {
      buffers_.push_back(DeviceBuffer::Make(backend.device(), bytes.size()).value());
      backend.device().CopyFromHost(buffers_.back().data(), bytes.data(), bytes.size());
      pages_.push_back(buffers_.back().data());
    }
  }
  // Rows [first, first + num) of k and v.
  void Append(const Floats& k, const Floats& v, int64_t first, int64_t num) {
    const int64_t dim = layout_.head_dim;
    const auto rows = [&](const Floats& all) {
      return Held(backend_, {num, dim}, Floats(all.begin() + first * dim, all.begin() + (first + num) * dim));
    };
    const Held new_k = rows(k), new_v = rows(v);
    const TestHead head = Work(first, num);
    const HeadsStep step({&head, 1});
    backend_.BeginStep(step.step());
    backend_.AppendKv({.step = &step.step(), .k = new_k.view(), .v = new_v.view()});
    ASSERT_TRUE(backend_.device().Wait().ok());
  }
  Floats Read(int64_t pos) const { return ReadToken(backend_, Work(0, 0), pos); }
  // Of queries of ones, at the last `num` positions.
  Floats Attend(int64_t num_tokens, int64_t num, Compute compute = Compute::kF32) const {
    const Held q(backend_, {num, layout_.head_dim}, Floats(static_cast<size_t>(num * layout_.head_dim), 1.0f));
    const Held out = Held::Poisoned(backend_, {num, layout_.head_dim});
    const TestHead head = Work(num_tokens - num, num);
    const HeadsStep step({&head, 1});
    backend_.BeginStep(step.step());
    AttentionArgs args;
    args.step = &step.step();
    args.q = q.view();
    args.out = out.view();
    args.num_q_heads = 1;
    args.scale = 0.1f;
    args.compute = compute;
    backend_.Attention(args);
    return out.Read();
  }

 private:
  TestHead Work(int64_t first, int64_t num) const {
    return {.num_rows = num, .first_pos = first, .layout = layout_, .pages = TableOf(pages_, kPageTokens, 0, 0)};
  }

  Backend& backend_;
  KvLayout layout_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::byte*> pages_;
};

TEST(KvAppend, HoweverManyAtOnceTheyAreWhatTheyRoundTo) {
  constexpr int64_t kSteps[] = {1, 16, 5, 50, 3, 16, 32, 5};
  constexpr int64_t kTokens = 128;
  const bool on_gpu = IsTestDevice("cuda");
  for (const auto& [name, backend] : AllBackends()) {
    for (const Format& format : kFormats) {
      if (on_gpu && format.format == KvFormat::kF32) continue;  // has no such cache
      for (const int64_t dim : on_gpu ? std::vector<int64_t>{64, 128} : std::vector<int64_t>{64, 80, 20}) {
        SCOPED_TRACE(name + ", " + format.name + ", " + std::to_string(dim));
        const KvLayout layout{.head_dim = dim, .page_tokens = kPageTokens, .format = format.format};
        Random random(static_cast<uint64_t>(dim));
        Floats k = random.Normal(kTokens * dim), v = random.Normal(kTokens * dim);
        k[3] = 3e-7f;  // f16 has no more digits for it
        v[5] = -3e-7f;
        // What pads dimensions is multiplied: it must not be what stood there, NaN of one of them.
        Head head(*backend, layout, kTokens, std::byte{0xFF}), other(*backend, layout, kTokens, std::byte{0});
        int64_t first = 0;
        for (const int64_t num : kSteps) {
          head.Append(k, v, first, num);
          other.Append(k, v, first, num);
          first += num;
        }
        ASSERT_EQ(first, kTokens);
        const Floats expected_k = Rounded(k, format.dtype), expected_v = Rounded(v, format.dtype);
        for (int64_t pos = 0; pos < kTokens; ++pos) {
          Floats expected(expected_k.begin() + pos * dim, expected_k.begin() + (pos + 1) * dim);
          expected.insert(expected.end(), expected_v.begin() + pos * dim, expected_v.begin() + (pos + 1) * dim);
          ASSERT_EQ(head.Read(pos), expected) << "token " << pos;
        }
        for (const int64_t num : {1, 20}) EXPECT_EQ(head.Attend(kTokens, num), other.Attend(kTokens, num));
      }
    }
  }
}

// Not to those from whom it is hidden: rows of blocks of 64 keys and of less.
TEST(KvAppend, AKeyThatIsNoNumberShowsToAllWhoReadIt) {
  constexpr int64_t kDim = 64;
  constexpr int64_t kNaN = 3;
  for (const auto& [name, backend] : CpuBackends()) {
    for (const int64_t num_tokens : {20, 80}) {
      for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
        SCOPED_TRACE(name + ", " + std::to_string(num_tokens));
        Random random(11);
        Floats k = random.Normal(num_tokens * kDim);
        const Floats v = random.Normal(num_tokens * kDim);
        k[kNaN * kDim] = std::numeric_limits<float>::quiet_NaN();
        const KvLayout layout{.head_dim = kDim, .page_tokens = kPageTokens, .format = KvFormat::kF16};
        Head head(*backend, layout, num_tokens, std::byte{0});
        head.Append(k, v, 0, num_tokens);
        const Floats out = head.Attend(num_tokens, num_tokens, compute);
        for (int64_t row = 0; row < num_tokens; ++row) {
          ASSERT_EQ(std::isnan(out[static_cast<size_t>(row * kDim)]), row >= kNaN) << "row " << row;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headwise
