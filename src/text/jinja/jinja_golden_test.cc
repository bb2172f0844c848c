// What jinja2 itself made of templates in the manner of the published families, of small expressions and of random ones
// (tools/make_template_golden.py). Where jinja2 raises an error there must be one here, too; its words are our own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "text/jinja/template.h"

namespace headwise::jinja {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(HEADWISE_SOURCE_DIR) / "tests/golden/templates";

OrderedJson Read(const fs::path& path) {
  const auto text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? OrderedJson::parse(*text) : OrderedJson();
}

// Thursday, 4 July 2024, 15:09:07: NOW of the script.
RenderOptions Options() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 4;
  now.tm_hour = 15;
  now.tm_min = 9;
  now.tm_sec = 7;
  now.tm_wday = 4;
  now.tm_yday = 185;
  return {.limits = {}, .now = now};
}

Result<MarkedText> Render(const std::string& source, const OrderedJson& variables) {
  HW_ASSIGN_OR_RETURN(const Template parsed, Template::Parse(source));
  Context context;
  for (const auto& [name, value] : variables.items()) HW_RETURN_IF_ERROR(context.SetJson(name, value));
  return parsed.Render(context, Options());
}

void Expect(const std::string& source, const OrderedJson& variables, const OrderedJson& expected,
            const std::string& what) {
  const auto rendered = Render(source, variables);
  if (expected.is_null()) {
    EXPECT_FALSE(rendered.ok()) << what << ": jinja2 says no, and here it gives\n" << rendered->text;
    return;
  }
  ASSERT_TRUE(rendered.ok()) << what << ": " << rendered.status().message();
  EXPECT_EQ(rendered->text, expected.get<std::string>()) << what;
}

TEST(JinjaGolden, StylesOfPublishedTemplates) {
  const OrderedJson contexts = Read(kFolder / "contexts.json");
  size_t num_templates = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().filename().string().rfind("styles_", 0) != 0) continue;
    const OrderedJson styles = Read(entry.path());
    for (const auto& [name, cases] : styles.items()) {
      const auto source = ReadFile(kFolder / "styles" / (name + ".jinja"));
      ASSERT_TRUE(source.ok()) << source.status().message();
      ++num_templates;
      for (const auto& [talk, expected] : cases.items()) {
        Expect(*source, contexts.at(talk), expected, name + " of " + talk);
      }
    }
  }
  EXPECT_GE(num_templates, 60u);
}

TEST(JinjaGolden, Expressions) {
  const OrderedJson golden = Read(kFolder / "expressions.json");
  for (const OrderedJson& one : golden.at("cases")) {
    const auto source = one[0].get<std::string>();
    Expect(source, golden.at("context"), one[1], source);
  }
}

void ExpectCases(const OrderedJson& golden) {
  ASSERT_FALSE(golden.at("cases").empty());
  for (const OrderedJson& one : golden.at("cases")) {
    const auto source = one[1].get<std::string>();
    const OrderedJson& context = golden.at("contexts").at(one[0].get<size_t>());
    Expect(source, context, one[2], source + "\nof " + context.dump());
  }
}

TEST(JinjaGolden, RandomTemplates) {
  ExpectCases(Read(kFolder / "random.json"));
}

// As many more as somebody has drawn: see the script.
TEST(JinjaGolden, CasesFromOutside) {
  const char* path = std::getenv("HEADWISE_TEMPLATE_CASES");
  if (!path) GTEST_SKIP() << "HEADWISE_TEMPLATE_CASES names no file";
  ExpectCases(Read(path));
}

}  // namespace
}  // namespace headwise::jinja
