// Standard output, where results go, and the only way to it. A write that fails is remembered: whatever a command was
// doing, its exit status says that its output was lost.
#ifndef HEADWISE_APPS_OUTPUT_H_
#define HEADWISE_APPS_OUTPUT_H_

#include <fmt/format.h>
#include <headwise/status.h>

#include <string_view>
#include <utility>

#include "base/json.h"

namespace headwise {

// Called first of all. Where the process was started without one of its three standard files, the next file it opens
// would take that place, and be written what was meant for a person.
void KeepStandardFiles();

// At once, as it is. False from the first write that failed on: an on_text, which cancels when nobody takes the text
// any more.
bool WriteOutput(std::string_view text);

// For people: what names in files would have the terminal do is shown and not done.
void PrintText(std::string_view text);
template <typename... T>
void Print(fmt::format_string<T...> format, T&&... arguments) {
  PrintText(fmt::format(format, std::forward<T>(arguments)...));
}

// What became of all that was written so far.
Status CheckOutput();

// One JSON value and a line end; an error if it cannot be written.
Status PrintJson(const Json& json);

// The last thing that a command does: a full disk, or a file system far away, may say so only now.
Status CloseOutput();

}  // namespace headwise

#endif  // HEADWISE_APPS_OUTPUT_H_
