// Files of kept texts and the folder that they are in, on pages that no model has written.
#include "server/prefix_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/file.h"
#include "support/temp_folder.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRoom = int64_t{1} << 30;

std::vector<int32_t> IdsFrom(int32_t first, size_t num_ids) {
  std::vector<int32_t> ids(num_ids);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::shared_ptr<SavedText> SomeText(std::vector<int32_t> ids, size_t page_bytes = 40) {
  auto text = std::make_shared<SavedText>();
  text->ids = std::move(ids);
  text->limits = {.prompt_tokens = 7, .max_tokens = 9};
  text->rope_frequencies = {{1, 0.5}, {0.25}};
  KvSnapshot& snapshot = text->snapshot;
  snapshot.num_kv_heads = 1;
  snapshot.num_tokens = static_cast<int64_t>(text->ids.size());
  snapshot.peak_bytes = 77;
  snapshot.rules = {{}, {.sink = 2, .recent = 8, .compensate = true, .positions = Positions::kCache}};
  snapshot.heads = {{.pages = {0}, .begin = 0, .ring_pages = kNoLimit, .aged = {}, .has_state = false},
                    {.pages = {0, 3}, .begin = 3, .ring_pages = 4, .aged = {.begin = 1, .end = 2}, .has_state = true}};
  snapshot.bytes = static_cast<int64_t>(page_bytes);
  snapshot.pages.reset(new std::byte[page_bytes]);
  for (size_t i = 0; i < page_bytes; ++i) snapshot.pages[i] = static_cast<std::byte>(i * 7);
  return text;
}

PrefixFileHead HeadOf(const SavedText& text, const std::string& plan = "plan") {
  return {.identity = "weights",
          .plan = plan,
          .reading = HashOfReading(text.rope_frequencies, text.snapshot.rules),
          .payload_bytes = PayloadBytes(text),
          .ids = text.ids};
}

std::string NameOfText(const SavedText& text, const std::string& plan = "plan") {
  return PrefixFileName("weights", plan, text.ids);
}

void WriteBytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(PrefixFile, ComesBackAsItWas) {
  const TempFolder folder;
  const auto path = folder.path() / "a";
  const auto text = SomeText(IdsFrom(5, 6));
  const PrefixFileHead head = HeadOf(*text);
  ASSERT_TRUE(WritePrefixFile(path, head, *text).ok());
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), PrefixFileBytes(head));
  const auto read_head = ReadPrefixFileHead(path);
  ASSERT_TRUE(read_head.ok()) << read_head.status().message();
  EXPECT_EQ(read_head->identity, head.identity);
  EXPECT_EQ(read_head->plan, head.plan);
  EXPECT_EQ(read_head->reading, head.reading);
  EXPECT_EQ(read_head->ids, text->ids);
  const auto read = ReadPrefixFile(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)->ids, text->ids);
  EXPECT_EQ((*read)->limits.prompt_tokens, 7);
  EXPECT_EQ((*read)->limits.max_tokens, 9);
  EXPECT_EQ((*read)->rope_frequencies, text->rope_frequencies);
  const KvSnapshot& snapshot = (*read)->snapshot;
  EXPECT_EQ(snapshot.rules, text->snapshot.rules);
  EXPECT_EQ(snapshot.peak_bytes, 77);
  ASSERT_EQ(snapshot.heads.size(), 2u);
  EXPECT_EQ(snapshot.heads[1].pages, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(snapshot.heads[1].begin, 3);
  EXPECT_EQ(snapshot.heads[1].ring_pages, 4);
  EXPECT_EQ(snapshot.heads[1].aged, (PageRange{1, 2}));
  EXPECT_TRUE(snapshot.heads[1].has_state);
  ASSERT_EQ(snapshot.bytes, 40);
  EXPECT_EQ(std::memcmp(snapshot.pages.get(), text->snapshot.pages.get(), 40), 0);
}

TEST(PrefixFile, EveryBitCounts) {
  const TempFolder folder;
  const auto path = folder.path() / "a";
  const auto text = SomeText(IdsFrom(5, 6));
  ASSERT_TRUE(WritePrefixFile(path, HeadOf(*text), *text).ok());
  const std::string whole = *ReadFile(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    WriteBytes(path, changed);
    EXPECT_FALSE(ReadPrefixFile(path).ok()) << "byte " << i;
    WriteBytes(path, whole.substr(0, i));
    EXPECT_FALSE(ReadPrefixFile(path).ok()) << i << " bytes";
    // Whose length is wrong can be told without its pages.
    EXPECT_FALSE(ReadPrefixFileHead(path).ok()) << i << " bytes";
  }
  WriteBytes(path, whole + "x");
  EXPECT_FALSE(ReadPrefixFile(path).ok());
  WriteBytes(path, whole);
  EXPECT_TRUE(ReadPrefixFile(path).ok());
}

TEST(PrefixFile, PlansAreTheirRules) {
  HeadPlan plan = HeadPlan::Dense({.architecture = "llama", .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2});
  const std::string hash = HashOfPlan(plan);
  plan.method = "duo";
  EXPECT_EQ(HashOfPlan(plan), hash);
  plan.rules[1] = HeadRule::Stream(4, 64);
  const std::string streamed = HashOfPlan(plan);
  EXPECT_NE(streamed, hash);
  plan.rules[1].recent = 65;
  EXPECT_NE(HashOfPlan(plan), streamed);
}

class PrefixDirs : public ::testing::Test {
 protected:
  Result<std::unique_ptr<PrefixDir>> TryOpen(int64_t limit_bytes = kRoom) {
    return PrefixDir::Open({.path = folder_.path(), .limit_bytes = limit_bytes, .warn = [this](const auto& text) {
                              log_ += text + "\n";
                            }});
  }
  std::unique_ptr<PrefixDir> Open(int64_t limit_bytes = kRoom) {
    auto dir = TryOpen(limit_bytes);
    EXPECT_TRUE(dir.ok()) << dir.status().message();
    return *std::move(dir);
  }
  static void Write(PrefixDir& dir, const std::shared_ptr<SavedText>& text, const std::string& plan = "plan") {
    dir.Write(HeadOf(*text, plan), text);
    dir.Flush();
  }
  std::filesystem::path PathOf(const SavedText& text) { return folder_.path() / (NameOfText(text) + ".prefix"); }

  TempFolder folder_;
  std::string log_;
};

TEST_F(PrefixDirs, FindsTheLongestAfterARestart) {
  const auto shorter = SomeText(IdsFrom(0, 10));
  const auto longer = SomeText(IdsFrom(0, 20));
  {
    const auto dir = Open();
    Write(*dir, shorter);
    Write(*dir, longer);
    Write(*dir, SomeText(IdsFrom(0, 25)), "another");
    EXPECT_EQ(dir->StatsOf("weights").num_saved, 3);
    EXPECT_FALSE(dir->Wants(NameOfText(*longer), HeadOf(*longer).reading, 40, PrefixDir::Room::kNow));
    EXPECT_TRUE(dir->Wants(NameOfText(*longer), "read otherwise", 40, PrefixDir::Room::kNow));
  }
  const auto dir = Open();
  EXPECT_EQ(dir->num_entries(), 3);
  EXPECT_EQ(dir->Longest("weights", "plan", IdsFrom(0, 30))->num_tokens, 20);
  // Something is left to be read.
  EXPECT_EQ(dir->Longest("weights", "plan", IdsFrom(0, 20))->num_tokens, 10);
  EXPECT_FALSE(dir->Longest("weights", "plan", IdsFrom(1, 30)));
  EXPECT_FALSE(dir->Longest("other weights", "plan", IdsFrom(0, 30)));
  EXPECT_FALSE(dir->Longest("weights", "no plan", IdsFrom(0, 30)));
  const auto text = dir->Load(dir->Longest("weights", "plan", IdsFrom(0, 30))->name);
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(text->ids, longer->ids);
  EXPECT_EQ(log_, "");
}

TEST_F(PrefixDirs, StaysWithinItsLimit) {
  const auto bytes = PrefixFileBytes(HeadOf(*SomeText(IdsFrom(0, 50), 1000)));
  {
    const auto dir = Open(3 * bytes + 10);
    for (int32_t i = 0; i < 3; ++i) Write(*dir, SomeText(IdsFrom(100 * i, 50), 1000));
    EXPECT_EQ(dir->num_entries(), 3);
    // It was used last: the second is the oldest now.
    EXPECT_NE(dir->Load(dir->Longest("weights", "plan", IdsFrom(0, 60))->name), nullptr);
    Write(*dir, SomeText(IdsFrom(300, 50), 1000));
    EXPECT_EQ(dir->num_entries(), 3);
    EXPECT_LE(dir->bytes(), 3 * bytes + 10);
    EXPECT_TRUE(dir->Longest("weights", "plan", IdsFrom(0, 60)));
    EXPECT_FALSE(dir->Longest("weights", "plan", IdsFrom(100, 60)));
    // What saves little for its bytes goes first, and what is larger than all is not written.
    Write(*dir, SomeText(IdsFrom(400, 50), 100000));
    EXPECT_EQ(dir->num_entries(), 3);
    EXPECT_EQ(dir->StatsOf("weights").num_evicted, 1);
  }
  const auto dir = Open(2 * bytes);
  EXPECT_EQ(dir->num_entries(), 2);
  EXPECT_LE(dir->bytes(), 2 * bytes);
  int num_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
    num_files += file.path().extension() == ".prefix" ? 1 : 0;
  }
  EXPECT_EQ(num_files, 2);
}

TEST_F(PrefixDirs, TornFilesGoOthersStay) {
  const auto torn = SomeText(IdsFrom(0, 10));
  const auto later = SomeText(IdsFrom(100, 10));
  Write(*Open(), torn);
  Write(*Open(), later);
  const std::string whole = *ReadFile(PathOf(*torn));
  WriteBytes(PathOf(*torn), whole.substr(0, whole.size() - 1));
  std::string other_version = *ReadFile(PathOf(*later));
  other_version[16] = 9;
  WriteBytes(PathOf(*later), other_version);
  WriteBytes(folder_.path() / "notes.txt", "not ours");
  EXPECT_EQ(Open()->num_entries(), 0);
  EXPECT_FALSE(std::filesystem::exists(PathOf(*torn)));
  EXPECT_TRUE(std::filesystem::exists(PathOf(*later)));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "notes.txt"));
  EXPECT_THAT(log_, HasSubstr("is of version 9, expected 1"));
  EXPECT_THAT(log_, HasSubstr("not those that its head says"));
}

// What a server that was killed had half written, on file systems where that needs a name.
TEST_F(PrefixDirs, UnfinishedFilesGo) {
  const auto text = SomeText(IdsFrom(0, 10));
  Write(*Open(), text);
  const auto unfinished = std::filesystem::path(PathOf(*text).string() + ".0012abcd");
  WriteBytes(unfinished, "half of it");
  WriteBytes(PathOf(*text).string() + ".saved", "somebody's copy");
  EXPECT_EQ(Open()->num_entries(), 1);
  EXPECT_FALSE(std::filesystem::exists(unfinished));
  EXPECT_TRUE(std::filesystem::exists(PathOf(*text).string() + ".saved"));
  EXPECT_THAT(log_, HasSubstr("was never finished"));
}

TEST_F(PrefixDirs, TornPagesGoWhenTheyAreRead) {
  const auto text = SomeText(IdsFrom(0, 10));
  Write(*Open(), text);
  std::string bytes = *ReadFile(PathOf(*text));
  bytes[bytes.size() - 70] ^= 1;
  WriteBytes(PathOf(*text), bytes);
  const auto dir = Open();
  EXPECT_EQ(dir->num_entries(), 1);
  EXPECT_EQ(dir->Load(NameOfText(*text)), nullptr);
  EXPECT_EQ(dir->num_entries(), 0);
  EXPECT_EQ(dir->bytes(), 0);
  EXPECT_FALSE(std::filesystem::exists(PathOf(*text)));
}

TEST_F(PrefixDirs, OneServerAtATime) {
  auto dir = Open();
  const auto second = TryOpen();
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("another server has this folder"));
  dir.reset();
  EXPECT_TRUE(TryOpen().ok());
}

TEST_F(PrefixDirs, HasToBeWritable) {
  WriteBytes(folder_.path() / "file", "");
  EXPECT_THAT(PrefixDir::Open({.path = folder_.path() / "file"}).status().message(), HasSubstr("is no folder"));
  EXPECT_THAT(PrefixDir::Open({.path = folder_.path() / "no" / "folder"}).status().message(),
              HasSubstr("none can be made there"));
  // Where nobody may make files, root included.
  EXPECT_FALSE(PrefixDir::Open({.path = "/proc"}).ok());
}

TEST_F(PrefixDirs, WarnsOnceWhereNothingCanBeWritten) {
  const auto dir = Open();
  // Its folder is gone: no file can be made.
  std::filesystem::remove_all(folder_.path());
  Write(*dir, SomeText(IdsFrom(0, 10)));
  Write(*dir, SomeText(IdsFrom(100, 10)));
  EXPECT_EQ(dir->num_entries(), 0);
  EXPECT_EQ(dir->StatsOf("weights").num_failed, 2);
  EXPECT_EQ(log_.find("a text is not kept on disk"), log_.rfind("a text is not kept on disk"));
  EXPECT_THAT(log_, HasSubstr("a text is not kept on disk"));
}

}  // namespace
}  // namespace headwise
