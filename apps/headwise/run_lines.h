// run --prompts: the requests of a file, several at once, one JSON line for each.
#ifndef HEADWISE_APPS_RUN_LINES_H_
#define HEADWISE_APPS_RUN_LINES_H_

#include <headwise/status.h>

#include "run_request.h"

namespace headwise {

// Requires: options.prompts. Lines are written in the order of the input, each as soon as those before it are there. A
// request that fails is a line with "error", and an error at the end.
Status RunLines(const RunOptions& options);

}  // namespace headwise

#endif  // HEADWISE_APPS_RUN_LINES_H_
