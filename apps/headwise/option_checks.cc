#include "option_checks.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/format_bytes.h"

namespace headwise {
namespace {

// Options whose commands say more of an empty value, or for whom it means something.
bool MayBeEmpty(const CLI::Option& option) {
  for (const char* name : {"--prompt", "--stop", "--joint"}) {
    if (option.check_name(name)) return true;
  }
  return false;
}

// Validators return what is wrong with a value, or nothing.
template <typename Number>
std::string WholeNumberError(std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end) return "";
  return fmt::format("found \"{}\", expected a whole number from {} to {}", text, std::numeric_limits<Number>::min(),
                     std::numeric_limits<Number>::max());
}

std::string NumberError(std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && std::isfinite(number)) return "";
  return fmt::format("found \"{}\", expected a number", text);
}

std::string EmptyError(std::string& text) {
  return text.empty() ? "found nothing, expected a value" : "";
}

void CheckValuesOf(CLI::Option& option) {
  if (option.get_expected_max() == 0) return;  // a flag
  const std::string type = option.get_type_name();
  // No words of their own in the help: these are no news to a reader.
  if (option.check_name("--threads")) {
    option.check(CLI::Validator(WholeNumberError<int>, ""));
  } else if (type.starts_with("INT")) {
    option.check(CLI::Validator(WholeNumberError<int64_t>, ""));
  } else if (type.starts_with("UINT")) {
    option.check(CLI::Validator(WholeNumberError<uint64_t>, ""));
  } else if (type.starts_with("FLOAT")) {
    option.check(CLI::Validator(NumberError, ""));
  } else if (!MayBeEmpty(option)) {
    option.check(CLI::Validator(EmptyError, ""));
  }
}

}  // namespace

CLI::Option* AddBytesOption(CLI::App& command, const std::string& name, int64_t& bytes, const std::string& help) {
  // Becomes digits before the parser reads it.
  const auto to_digits = [](std::string& text) -> std::string {
    const Result<int64_t> parsed = ParseBytes(text);
    if (!parsed.ok()) return parsed.status().message();
    text = fmt::format("{}", *parsed);
    return "";
  };
  return command.add_option(name, bytes, fmt::format("{}; K, M, G or KiB, MiB, GiB may follow", help))
      ->transform(CLI::Validator(to_digits, ""))
      ->capture_default_str();
}

void CheckValues(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) CheckValuesOf(*option);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) CheckValues(*command);
}

Status CheckRange(const char* option, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::Ok();
  return Status::InvalidInput(fmt::format("{}: found {}, expected {} to {}", option, value, least, most));
}

}  // namespace headwise
