// What every option's value is looked at for before it is read: the parser takes "" for 0, -1 for 2^64 - 1, and in a
// number whatever the C library does.
#ifndef HEADWISE_APPS_OPTION_CHECKS_H_
#define HEADWISE_APPS_OPTION_CHECKS_H_

#include <headwise/status.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace headwise {

// An option that takes bytes as people write them (ParseBytes). `help` without the units.
CLI::Option* AddBytesOption(CLI::App& command, const std::string& name, int64_t& bytes, const std::string& help);

// Of all options of `app` and of its subcommands: no empty values, whole numbers within their types, finite numbers.
// Called once all are declared.
void CheckValues(CLI::App& app);

// An error that names the option where `value` is less than `least` or more than `most`.
Status CheckRange(const char* option, int64_t value, int64_t least, int64_t most);

}  // namespace headwise

#endif  // HEADWISE_APPS_OPTION_CHECKS_H_
