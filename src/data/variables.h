// Variables that are assigned to each other: RULER's variable tracking [ruler §3.2]. The answer takes as many steps as
// a chain has hops, and they stand far apart.
//
//   VAR XQZTA = 12345. ... VAR BRWQP = VAR XQZTA. ... VAR LMEOD = VAR BRWQP.
#ifndef HEADWISE_DATA_VARIABLES_H_
#define HEADWISE_DATA_VARIABLES_H_

#include <headwise/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "data/asked_text.h"

namespace headwise {

struct VariableOptions {
  int64_t num_chains = 1;  // one is asked for, the others distract; at most 1,000
  int64_t num_hops = 4;    // assignments of a chain after the one that gives it its number; at most 1,000
};

struct VariableChain {
  int64_t value = 0;               // of five digits
  std::vector<std::string> names;  // of five upper-case letters, every one assigned the one before it
  std::vector<double> depths;      // of the assignments in the text, ascending
};

// An error if an option is out of range.
Status ValidateVariableOptions(const VariableOptions& options);

// The first is asked for. Names and values are all different. Requires: valid options.
std::vector<VariableChain> DrawVariableChains(Rng& rng, const VariableOptions& options);

// The assignments hidden in `filler`, and one question, for all names of the first chain. Requires: one chain or more;
// `filler` is valid UTF-8, and may be empty.
AskedText MakeVariables(std::string_view filler, std::span<const VariableChain> chains);

}  // namespace headwise

#endif  // HEADWISE_DATA_VARIABLES_H_
