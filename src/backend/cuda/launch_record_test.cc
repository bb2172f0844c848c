#include "backend/cuda/launch_record.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string_view>
#include <vector>

namespace headwise::cuda {
namespace {

// Never launched: only compared.
struct Call {
  int kernel = 0;
  unsigned grid = 1;
  unsigned threads = 32;
  size_t shared_bytes = 0;
  bool waits_by_itself = false;
  bool lets_begin_late = false;
  unsigned cluster_blocks = 1;
  cudaError_t (*call)(void* const* args, cudaStream_t stream) = nullptr;
  int64_t first = 7;
  float second = 0.5f;
};

LaunchRecord RecordOf(std::initializer_list<Call> calls) {
  static const std::array<char, 2> kKernels{};
  LaunchRecord record;
  for (Call call : calls) {
    void* const args[] = {&call.first, &call.second};
    constexpr uint32_t kBytes[] = {sizeof(call.first), sizeof(call.second)};
    record.Add({.kernel = &kKernels[static_cast<size_t>(call.kernel)],
                .call = call.call,
                .operation = "Test",
                .shape = {.grid = dim3(call.grid),
                          .threads = call.threads,
                          .shared_bytes = call.shared_bytes,
                          .waits_by_itself = call.waits_by_itself,
                          .lets_begin_late = call.lets_begin_late,
                          .cluster_blocks = call.cluster_blocks}},
               args, kBytes);
  }
  return record;
}

TEST(LaunchRecord, IsEqualWhereAllThatIsLaunchedIs) {
  EXPECT_EQ(RecordOf({}), LaunchRecord());
  EXPECT_TRUE(RecordOf({}).empty());
  EXPECT_EQ(RecordOf({{}, {.grid = 2}}), RecordOf({{}, {.grid = 2}}));
}

TEST(LaunchRecord, DiffersWhereAnythingDoes) {
  const LaunchRecord record = RecordOf({{}, {}});
  EXPECT_NE(record, RecordOf({{}}));
  EXPECT_NE(record, RecordOf({{}, {}, {}}));
  const Call others[] = {{.kernel = 1},
                         {.grid = 2},
                         {.threads = 64},
                         {.shared_bytes = 4},
                         {.waits_by_itself = true},
                         {.lets_begin_late = true},
                         {.cluster_blocks = 2},
                         {.call = [](void* const*, cudaStream_t) { return cudaSuccess; }},
                         {.first = 8},
                         {.first = int64_t{7} << 32},
                         {.second = 0.25f}};
  for (const Call& other : others) {
    EXPECT_NE(record, RecordOf({{}, other}));
    EXPECT_NE(record, RecordOf({other, {}}));
  }
}

TEST(LaunchRecord, ForgetsTheLast) {
  LaunchRecord record = RecordOf({{.grid = 2}, {.grid = 3}});
  record.DropLast();
  EXPECT_EQ(record, RecordOf({{.grid = 2}}));
  EXPECT_DEATH(record.DropLast(), "no launch to drop");
  record = RecordOf({{}});
  record.DropLast();
  EXPECT_TRUE(record.empty());
}

TEST(LaunchRecord, CallsHaveTheirArgumentsInOrder) {
  static std::vector<int64_t> called;
  called.clear();
  const auto call = [](void* const* args, cudaStream_t) {
    called.push_back(*static_cast<const int64_t*>(args[0]));
    return called.size() < 3 ? cudaSuccess : cudaErrorUnknown;
  };
  const LaunchRecord record =
      RecordOf({{.call = call, .first = 3}, {.call = call, .first = 1}, {.call = call, .first = 4}, {.call = call}});
  std::string_view operation;
  EXPECT_EQ(record.LaunchAll(nullptr, false, operation), cudaErrorUnknown);
  EXPECT_EQ(called, (std::vector<int64_t>{3, 1, 4}));
  EXPECT_EQ(operation, "Test");
}

TEST(LaunchRecord, PartsAreComparedByWhichTheyAre) {
  LaunchRecord record = RecordOf({{.grid = 2}, {.grid = 3}, {.grid = 4}});
  const size_t begin = RecordOf({{.grid = 2}}).size_bytes();
  const auto part = std::make_shared<const LaunchRecord>(record.CutFrom(begin));
  EXPECT_EQ(record, RecordOf({{.grid = 2}}));
  EXPECT_EQ(*part, RecordOf({{.grid = 3}, {.grid = 4}}));
  EXPECT_DEATH(record.DropLast(), "no launch to drop");
  LaunchRecord same = RecordOf({{.grid = 2}});
  LaunchRecord other = RecordOf({{.grid = 2}});
  record.AddPart(part);
  same.AddPart(part);
  other.AddPart(std::make_shared<const LaunchRecord>(*part));
  EXPECT_EQ(record, same);
  EXPECT_NE(record, other);
  EXPECT_NE(record, RecordOf({{.grid = 2}, {.grid = 3}, {.grid = 4}}));
}

TEST(LaunchRecord, PartsAreLaunchedInTheirPlace) {
  static std::vector<int64_t> called;
  called.clear();
  const auto call = [](void* const* args, cudaStream_t) {
    called.push_back(*static_cast<const int64_t*>(args[0]));
    return called.size() < 5 ? cudaSuccess : cudaErrorUnknown;
  };
  LaunchRecord record = RecordOf({{.call = call, .first = 1}, {.call = call, .first = 2}});
  std::weak_ptr<const LaunchRecord> alive;
  {
    const auto part = std::make_shared<const LaunchRecord>(record.CutFrom(record.size_bytes() / 2));
    alive = part;
    record.AddPart(part);
    record.AddPart(part);
  }
  std::string_view operation;
  EXPECT_EQ(record.LaunchAll(nullptr, false, operation), cudaSuccess);
  EXPECT_EQ(called, (std::vector<int64_t>{1, 2, 2}));
  EXPECT_EQ(record.LaunchAll(nullptr, false, operation), cudaErrorUnknown);  // in the part
  EXPECT_EQ(called, (std::vector<int64_t>{1, 2, 2, 1, 2}));
  EXPECT_EQ(operation, "Test");
  record.Clear();
  EXPECT_TRUE(alive.expired());
}

TEST(LaunchRecord, ArgumentsStayApart) {
  // The same bytes in another place are another argument.
  EXPECT_NE(RecordOf({{.first = 0, .second = 1}}), RecordOf({{.first = 1, .second = 0}}));
}

}  // namespace
}  // namespace headwise::cuda
