#include "grammar/gbnf_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace headwise {
namespace {

using ::testing::HasSubstr;

TEST(GbnfCheck, TakesWhatIsSmall) {
  for (const char* text : {"root ::= \"a\"", "root ::= (\"{\" [({] x{2,3})* # {99999}\nx ::= \"\\\"{9999}\"",
                           "root ::= [^\\]{99999}] \"a\"{4096}"}) {
    const Status status = CheckGbnf(text);
    EXPECT_TRUE(status.ok()) << text << ": " << status.message();
  }
  EXPECT_TRUE(CheckRepetition(R"(a{1,3}[{9999}]\{9999}"{1,2}")", "regex").ok());
}

TEST(GbnfCheck, RefusesWhatMakesTooMuch) {
  std::string many = "root ::= \"a\"";
  for (int i = 0; i < 20; ++i) many += " \"b\"{4000}";
  const std::pair<std::string, const char*> cases[] = {
      {" \n", "is empty"},
      {std::string(70000, 'a'), "70000 bytes"},
      {"root ::= \"a\"{5000}", "repetitions"},
      {"root ::= \"a\"{99999999999999999999999}", "repetitions"},
      {"root ::= (\"a\"{100} \"b\"){100}", "repetitions"},
      {"root ::= ((\"a\"{20}){20}){20}", "repetitions"},
      {many, "in all"},
      {"root ::= " + std::string(100, '(') + "\"a\"" + std::string(100, ')'), "nest deeper"},
      {"root ::= x\nx[max_tokens=3] ::= \"a\"", "options"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(CheckGbnf(text).message(), HasSubstr(message)) << text.substr(0, 60);
  }
  EXPECT_THAT(CheckRepetition("((a{90}b){90}", "regex").message(), HasSubstr("regex: byte"));
}

}  // namespace
}  // namespace headwise
