// Keys and values that are written into pages, however many at once and from wherever in a group of slots on: what is
// read again is their rounding to the cache's format.
#include <gtest/gtest.h>

#include <algorithm>
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

TEST(KvAppend, HoweverManyAtOnceTheyAreWhatTheyRoundTo) {
  constexpr int64_t kSteps[] = {1, 16, 5, 50, 3, 16, 32};
  constexpr int64_t kTokens = 123;
  const bool on_gpu = IsTestDevice("cuda");
  for (const auto& [name, backend] : AllBackends()) {
    for (const Format& format : kFormats) {
      if (on_gpu && format.format == KvFormat::kF32) continue;  // has no such cache
      for (const int64_t dim : on_gpu ? std::vector<int64_t>{64, 128} : std::vector<int64_t>{64, 80, 20}) {
        const KvLayout layout{.head_dim = dim, .page_tokens = kPageTokens, .format = format.format};
        SCOPED_TRACE(name + ", " + format.name + ", " + std::to_string(dim));
        Random random(static_cast<uint64_t>(dim));
        Floats k = random.Normal(kTokens * dim), v = random.Normal(kTokens * dim);
        k[3] = 3e-7f;  // f16 has no more digits for it
        v[5] = -3e-7f;
        std::vector<DeviceBuffer> buffers;
        std::vector<std::byte*> pages;
        for (int64_t i = 0; i * kPageTokens < kTokens; ++i) {
          buffers.push_back(DeviceBuffer::Make(backend->device(), backend->PageBytes(layout)).value());
          pages.push_back(buffers.back().data());
        }
        const PageTable table = TableOf(pages, kPageTokens, 0, 0);
        int64_t first = 0;
        for (const int64_t num : kSteps) {
          const auto rows = [&](const Floats& all) {
            return Floats(all.begin() + first * dim, all.begin() + (first + num) * dim);
          };
          const Held new_k(*backend, {num, dim}, rows(k)), new_v(*backend, {num, dim}, rows(v));
          const TestHead head{.num_rows = num, .first_pos = first, .layout = layout, .pages = table};
          const HeadsStep step({&head, 1});
          backend->BeginStep(step.step());
          backend->AppendKv({.step = &step.step(), .k = new_k.view(), .v = new_v.view()});
          ASSERT_TRUE(backend->device().Wait().ok());
          first += num;
        }
        ASSERT_EQ(first, kTokens);
        const Floats expected_k = Rounded(k, format.dtype), expected_v = Rounded(v, format.dtype);
        for (int64_t pos = 0; pos < kTokens; ++pos) {
          Floats expected(expected_k.begin() + pos * dim, expected_k.begin() + (pos + 1) * dim);
          expected.insert(expected.end(), expected_v.begin() + pos * dim, expected_v.begin() + (pos + 1) * dim);
          ASSERT_EQ(ReadToken(*backend, {.layout = layout, .pages = table}, pos), expected) << "token " << pos;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headwise
