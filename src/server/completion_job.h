// One request of the API on its way through a service: prompts x n answers, gathered or streamed. Whoever asked may
// leave at any time; then everything that runs for him is cancelled.
#ifndef HEADWISE_SERVER_COMPLETION_JOB_H_
#define HEADWISE_SERVER_COMPLETION_JOB_H_

#include <memory>

#include "server/http.h"
#include "server/model_host.h"
#include "server/openai_request.h"
#include "server/worker_threads.h"

namespace headwise {

// What takes longer than the threads may that carry requests and hand out events.
struct JobThreads {
  WorkerThreads& compilers;  // work alone: forms, and the text of long answers
  WorkerThreads& readers;    // for a prompt that several answers share, or whose log-probabilities are asked for: it
                             // takes as long as the engine lets it, which is not to keep forms from their turn
};

// Returns as soon as the request is on its way; the reply comes from other threads. `model` and `threads` have to
// outlive the requests that run: they do where the model's service is shut down, then the threads stopped, before
// either goes.
void RunCompletionJob(ApiRequest request, ServedModel& model, JobThreads threads, std::shared_ptr<HttpReply> reply);

}  // namespace headwise

#endif  // HEADWISE_SERVER_COMPLETION_JOB_H_
