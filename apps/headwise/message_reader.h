// Lines of standard input, as a person types them or a script pipes them, and Ctrl-C among them.
#ifndef HEADWISE_APPS_MESSAGE_READER_H_
#define HEADWISE_APPS_MESSAGE_READER_H_

#include <headwise/status.h>

#include <string>

#include "generate.h"

namespace headwise {

class MessageReader {
 public:
  enum class Kind { kLine, kEnd, kInterrupted };
  struct Input {
    Kind kind = Kind::kEnd;
    std::string line;  // without its end
  };

  // Borrows the guard. Nobody else reads standard input.
  explicit MessageReader(const InterruptGuard& guard);

  bool is_terminal() const { return is_terminal_; }
  // Waits for a line, with a prompt on standard error where somebody types. kInterrupted until the guard forgets: what
  // was typed is gone then; what was piped comes first.
  Result<Input> Next();

 private:
  // True where a whole line is in buffer_, or the rest of all there is.
  bool HasLine() const;
  Input TakeLine();
  // Waits for bytes or Ctrl-C.
  Status ReadMore();

  const InterruptGuard& guard_;
  bool is_terminal_;
  bool is_at_end_ = false;
  std::string buffer_;
};

}  // namespace headwise

#endif  // HEADWISE_APPS_MESSAGE_READER_H_
