// Options as given on a command line, for tables of methods that each have their own: names without dashes, values as
// text. Every getter's error names the option, what was found and what was expected.
#ifndef HEADWISE_BASE_NAMED_OPTIONS_H_
#define HEADWISE_BASE_NAMED_OPTIONS_H_

#include <headwise/status.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

class NamedOptions {
 public:
  NamedOptions() = default;
  explicit NamedOptions(std::map<std::string, std::string> values) : values_(std::move(values)) {}
  // ToJson's text. An error if it is not a JSON object of texts.
  static Result<NamedOptions> FromJson(std::string_view json, const std::string& origin);

  bool Has(const std::string& name) const { return values_.count(name) > 0; }
  Result<std::string> Required(const std::string& name) const;
  std::string StringOr(const std::string& name, const std::string& otherwise) const;
  Result<int64_t> IntOr(const std::string& name, int64_t otherwise, int64_t lowest, int64_t highest) const;
  Result<double> DoubleOr(const std::string& name, double otherwise, double lowest, double highest) const;
  // "1.5G", "1.5GiB": as ParseBytes (base/format_bytes.h) reads them.
  Result<int64_t> BytesOr(const std::string& name, int64_t otherwise) const;
  // "a,b,c": the parts between the commas.
  std::vector<std::string> StringsOr(const std::string& name, const std::string& otherwise) const;
  // "1,2,3".
  Result<std::vector<int64_t>> IntsOr(const std::string& name, std::vector<int64_t> otherwise, int64_t lowest,
                                      int64_t highest) const;
  // The same, each larger than the one before.
  Result<std::vector<int64_t>> RisingIntsOr(const std::string& name, std::vector<int64_t> otherwise, int64_t lowest,
                                            int64_t highest) const;
  // One of `choices`, the first by default.
  Result<std::string> ChoiceOr(const std::string& name, std::span<const std::string_view> choices) const;
  // Options that are not among `known` are refused: one that is ignored silently is worse than an error. `command` is
  // what refuses: "plan duo".
  Status CheckKnown(std::string_view command, std::span<const std::string_view> known) const;
  // The same without one of them.
  NamedOptions Without(const std::string& name) const;
  // The same with one set.
  NamedOptions With(const std::string& name, const std::string& value) const;
  // All of them as a JSON object of strings, for provenance.
  std::string ToJson() const;

 private:
  std::map<std::string, std::string> values_;
};

// All of several lists of options, in whatever form a table has them.
template <typename Option, typename... Lists>
std::vector<Option> JoinLists(const Lists&... lists) {
  std::vector<Option> all;
  (all.insert(all.end(), std::begin(lists), std::end(lists)), ...);
  return all;
}

}  // namespace headwise

#endif  // HEADWISE_BASE_NAMED_OPTIONS_H_
