// Mixtures larger than memory: with any number of experts in memory the same bits, and what is said of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/model_info.h>

#include <filesystem>

#include "engine/quantize.h"
#include "support/changed_model.h"
#include "support/engines.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kGolden = "gpt_oss-mxfp4";  // one layer, two of three experts
// E and F are 32: rows of one block, panels of 16 of them; a stretch of scales is for four blocks.
constexpr int64_t kExpertBytes = 3 * 2 * (64 + 8 * 64 / 2);

class ExpertMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (IsTestDevice("cuda") || IsTestDevice("far")) GTEST_SKIP() << "a backend of this test's own";
    ASSERT_TRUE(QuantizeModel({.model = model_.path(), .out = path_, .type = DType::kMXFP4}).ok());
  }
  EngineOptions Options(int64_t expert_bytes, const std::string& isa = "auto") const {
    EngineOptions options = ExactOptions(path_, {"cpu", isa});
    options.expert_bytes = expert_bytes;
    return options;
  }
  static std::string Error(const EngineOptions& options) {
    const auto engine = Engine::Create(options);
    return engine.ok() ? "(no error)" : engine.status().message();
  }

  const ChangedModel model_{kGolden};
  const std::string path_ = model_.Path("model.gguf");
  const GoldenTensors golden_{SourcePath(std::string("tests/golden/tiny/") + kGolden + "/golden.safetensors")};
};

TEST_F(ExpertMemoryTest, AnyNumberInMemoryGivesTheSameBits) {
  const std::vector<int32_t> ids = golden_.Ids("ids_a");
  for (const BackendChoice& choice : BackendChoices()) {
    if (choice.backend != "cpu") continue;
    const auto all = MustCreate(Options(0, choice.isa));
    ASSERT_NE(all, nullptr);
    EXPECT_EQ(all->expert_memory().total_bytes, all->expert_memory().resident_bytes);
    EXPECT_GT(all->expert_memory().total_bytes, 0);
    for (const int64_t num_places : {1, 2, 3}) {
      for (const int64_t chunk : {1, 7, 64}) {
        SCOPED_TRACE(choice.name() + " places " + std::to_string(num_places) + " chunk " + std::to_string(chunk));
        const auto some = MustCreate(Options(num_places * kExpertBytes, choice.isa));
        ASSERT_NE(some, nullptr);
        EXPECT_EQ(some->expert_memory().resident_bytes, 0);
        EXPECT_EQ(some->expert_memory().total_bytes, 3 * kExpertBytes);
        EXPECT_EQ(MustRunForced(*some, ids, nullptr, -1, chunk).logits,
                  MustRunForced(*all, ids, nullptr, -1, chunk).logits);
        const ExpertMemory memory = some->expert_memory();
        EXPECT_EQ(memory.resident_bytes, num_places * kExpertBytes);
        if (num_places == 3) {
          EXPECT_EQ(memory.num_read, 3);
        } else if (num_places == 1 && chunk < 64) {  // of one chunk each is read once, in its round
          EXPECT_GT(memory.num_read, 3);
        }
      }
    }
  }
}

// The file may be in memory already.
TEST_F(ExpertMemoryTest, WorksWithoutAMapping) {
  EngineOptions options = Options(kExpertBytes);
  options.use_mmap = false;
  const std::vector<int32_t> ids = golden_.Ids("ids_a");
  EXPECT_EQ(MustRunForced(*MustCreate(options), ids).logits, MustRunForced(*MustCreate(Options(0)), ids).logits);
}

TEST_F(ExpertMemoryTest, ALimitThatCannotHoldIsRefused) {
  EXPECT_THAT(Error(Options(-1)), HasSubstr("expert_bytes is -1, expected 0"));
  EXPECT_THAT(Error(Options(kExpertBytes - 1)),
              HasSubstr("expert_bytes is 1919, expected at least the 1920 of one expert"));
  EngineOptions options = Options(kExpertBytes);
  options.backend = "ref";
  EXPECT_THAT(Error(options), HasSubstr("backend ref: expert_bytes is 1920, expected 0"));
  const auto no_experts = AllOf(HasSubstr("expert_bytes is 1920"), HasSubstr("no experts in block formats"));
  for (const char* other : {"llama-gqa", "mixtral", kGolden}) {
    options = Options(kExpertBytes);
    options.model = SourcePath(std::string("tests/golden/tiny/") + other);
    EXPECT_THAT(Error(options), no_experts) << other;
  }
}

// Experts in plain formats lie in the file: of a file as small as this all pages are in memory once it was read.
TEST_F(ExpertMemoryTest, PlainExpertsAreWhereTheFileIs) {
  const auto engine = MustCreate(ExactOptions(SourcePath("tests/golden/tiny/mixtral"), {"cpu"}));
  ASSERT_NE(engine, nullptr);
  MustRunForced(*engine, std::vector<int32_t>{1, 2, 3, 4, 5, 6});
  const ExpertMemory memory = engine->expert_memory();
  EXPECT_GT(memory.total_bytes, 0);
  EXPECT_GT(memory.resident_bytes, 0);
  EXPECT_LE(memory.resident_bytes, memory.total_bytes);
  EXPECT_EQ(memory.num_chosen, 0);
  const auto dense = MustCreate(ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"}));
  EXPECT_EQ(dense->expert_memory().total_bytes, 0);
}

TEST_F(ExpertMemoryTest, LoadingTellsHowFarItIs) {
  for (const int64_t expert_bytes : {int64_t{0}, kExpertBytes}) {
    std::vector<std::pair<int64_t, int64_t>> told;
    EngineOptions options = Options(expert_bytes);
    options.on_load = [&](int64_t done, int64_t total) { told.emplace_back(done, total); };
    ASSERT_NE(MustCreate(options), nullptr);
    ASSERT_GT(told.size(), 5u);
    EXPECT_EQ(told.front().first, 0);
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
    EXPECT_EQ(told[told.size() - 2].first, told.back().second);  // all matrices, counted one by one
    EXPECT_EQ(told.back().first, told.back().second);
  }
  // Also where it fails.
  std::pair<int64_t, int64_t> last;
  EngineOptions options = Options(1);
  options.on_load = [&](int64_t done, int64_t total) { last = {done, total}; };
  EXPECT_NE(Error(options), "(no error)");
  EXPECT_GT(last.second, 0);
  EXPECT_EQ(last.first, last.second);
}

}  // namespace
}  // namespace headwise
