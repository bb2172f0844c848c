// A long text and what is asked about it. The questions share the text, so that it has to be read only once.
#ifndef HEADWISE_DATA_ASKED_TEXT_H_
#define HEADWISE_DATA_ASKED_TEXT_H_

#include <string>
#include <vector>

namespace headwise {

struct AskedQuestion {
  std::string text;                   // follows the context directly, and begins with white space
  std::vector<std::string> expected;  // a complete answer has every one of them, as whole words or numbers
};

struct AskedText {
  std::string context;  // does not end with white space
  std::vector<AskedQuestion> questions;
};

}  // namespace headwise

#endif  // HEADWISE_DATA_ASKED_TEXT_H_
