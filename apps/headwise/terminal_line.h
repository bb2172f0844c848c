// Where the command shows how far its work is: the last line of the terminal, on stderr. Logs and pipes never see it.
#ifndef HEADWISE_APPS_TERMINAL_LINE_H_
#define HEADWISE_APPS_TERMINAL_LINE_H_

#include <string_view>

#include "base/progress.h"

namespace headwise {

class TerminalLine final : public ProgressLine {
 public:
  TerminalLine();
  int Columns() override;  // 0 where stderr is no terminal
  void Draw(std::string_view text) override;
  void Wipe() override;

 private:
  bool is_terminal_;
};

}  // namespace headwise

#endif  // HEADWISE_APPS_TERMINAL_LINE_H_
