// Work in a process of its own: for libraries that abort where they should return an error. The caller goes on.
#ifndef HEADWISE_PLANNER_ISOLATED_H_
#define HEADWISE_PLANNER_ISOLATED_H_

#include <headwise/status.h>

#include <functional>
#include <optional>
#include <string>

namespace headwise {

// What `work` returned in a copy of this process; none if the copy died on the way. Its standard error is dropped. Only
// the calling thread lives in the copy, so `work` must not wait for any other that the caller
// had; threads that a library starts in the copy are its own (CBC's dense factorisation starts OpenBLAS'). An error if
// the system has no room for another process.
Result<std::optional<std::string>> RunIsolated(const std::function<std::string()>& work);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_ISOLATED_H_
