#include "eval/ask.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <utility>

#include "engine/prompt.h"
#include "engine/sequence.h"

namespace headwise {
namespace {

// Whether a head notes on its way what it saw, in a way of its own: to select by score, or for so many blocks as follow
// from how long its text will be.
bool NotesWhatItSees(const HeadRule& rule) {
  const bool is_infllm = rule.select.kind == TokenSelector::Kind::kInfLlm;
  return rule.SelectsByScore() || (is_infllm && rule.kind != HeadRule::Kind::kStream);
}

// Whether a prompt is read as if every head were full.
bool ReadsDensely(const HeadPlan* plan) {
  return plan == nullptr || std::ranges::all_of(plan->rules, [](const HeadRule& rule) {
           return rule.kind == HeadRule::Kind::kFull ||
                  (rule.start == RuleStart::kEndOfPrompt && !NotesWhatItSees(rule));
         });
}

// Whether what is read before a prompt's end depends on where that is: notes of what its queries see.
bool CutsByScore(const HeadPlan* plan) {
  return plan != nullptr && std::ranges::any_of(plan->rules, [](const HeadRule& rule) {
           return NotesWhatItSees(rule) && rule.start == RuleStart::kEndOfPrompt;
         });
}

struct Asked {
  size_t prompt_idx = 0;
  size_t plan_idx = 0;
  RequestId id = 0;
};

// Questions that share the reading of their first tokens: of one group, under one plan or under plans that read a
// prompt alike. Of kNext: the turns of one conversation.
struct Branch {
  std::vector<Asked> asked;
  std::shared_ptr<Sequence> conversation;  // kNext
  // Null where the first tokens are not read apart.
  std::shared_ptr<Sequence> prefix;
  int64_t prefix_tokens = 0;
  RequestId prefix_id = 0;  // while the first tokens are being read
  int64_t prefix_peak_bytes = 0;
};

struct RunningGroup {
  int64_t group_idx = 0;
  AskGroup group;
  int64_t longest_prompt = 0;
  std::vector<Branch> branches;

  bool IsConversation() const { return group.turns == Turns::kNext; }
  // Where the first turn of a prompt ends.
  int64_t FirstTurn(int64_t prompt_tokens) const {
    return group.turns == Turns::kLater ? group.text_tokens : prompt_tokens;
  }
};

class Asker {
 public:
  Asker(Engine& engine, const AskOptions& options) : engine_(engine), options_(options) {}

  Status Run() {
    while (true) {
      while (next_group_ < options_.num_groups && static_cast<int64_t>(running_.size()) < options_.batch) {
        const int64_t group_idx = next_group_++;
        Status started = Start(group_idx);
        if (!started.ok()) return std::move(started).Annotate(fmt::format("case {}", group_idx));
      }
      if (running_.empty()) return Status::Ok();
      HW_ASSIGN_OR_RETURN([[maybe_unused]] const bool has_more, engine_.Step());
      for (auto it = running_.begin(); it != running_.end();) {
        HW_RETURN_IF_ERROR(Advance(*it));
        it = it->branches.empty() ? running_.erase(it) : std::next(it);
      }
    }
  }

  // After an error: gives back what the requests hold.
  void Abandon() {
    for (RunningGroup& running : running_) {
      for (Branch& branch : running.branches) {
        if (branch.prefix_id != 0) static_cast<void>(engine_.Take(branch.prefix_id));
        for (const Asked& asked : branch.asked) {
          if (asked.id != 0) static_cast<void>(engine_.Take(asked.id));
        }
      }
    }
    running_.clear();
  }

 private:
  // Whether plans that read a prompt alike may begin as forks of one sequence.
  bool SharesDensePrefix(const HeadPlan* plan) const {
    return plan == nullptr || (ReadsDensely(plan) && engine_.CanBeginFull(*plan));
  }

  Status Start(int64_t group_idx) {
    HW_ASSIGN_OR_RETURN(AskGroup group, options_.group(group_idx));
    RunningGroup running{.group_idx = group_idx, .group = std::move(group), .longest_prompt = 0, .branches = {}};
    for (const auto& prompt : running.group.prompts) {
      running.longest_prompt = std::max(running.longest_prompt, static_cast<int64_t>(prompt.size()));
    }
    Branch dense;
    for (size_t plan_idx = 0; plan_idx < running.group.plans.size(); ++plan_idx) {
      Branch own;
      const bool shares = !running.IsConversation() && SharesDensePrefix(running.group.plans[plan_idx].get());
      Branch& branch = shares ? dense : own;
      const size_t num_prompts = running.group.prompts.size();
      const auto wants = [&](size_t prompt_idx) { return options_.wants(group_idx, prompt_idx, plan_idx); };
      for (size_t prompt_idx = 0; prompt_idx < num_prompts; ++prompt_idx) {
        // What comes later in a conversation rests on what was answered before.
        size_t last_idx = running.IsConversation() ? num_prompts - 1 : prompt_idx;
        while (last_idx > prompt_idx && !wants(last_idx)) --last_idx;
        if (wants(last_idx)) branch.asked.push_back({prompt_idx, plan_idx, 0});
      }
      if (!own.asked.empty()) running.branches.push_back(std::move(own));
    }
    if (!dense.asked.empty()) running.branches.push_back(std::move(dense));
    if (running.branches.empty()) return Status::Ok();
    running_.push_back(std::move(running));
    // In the list before anything is submitted, so that Abandon knows of it.
    return Begin(running_.back(), running_.back().branches.front());
  }

  static int64_t CommonTokens(const RunningGroup& running, const Branch& branch) {
    std::vector<std::span<const int32_t>> prompts;
    for (const Asked& asked : branch.asked) prompts.push_back(running.group.prompts[asked.prompt_idx]);
    return SharedTokens(prompts);
  }

  static SequenceOptions LimitsOf(const RunningGroup& running, std::shared_ptr<const HeadPlan> plan) {
    return {.plan = std::move(plan),
            .prompt_tokens = running.FirstTurn(running.longest_prompt),
            .max_tokens = running.longest_prompt + running.group.max_new_tokens};
  }

  Status BeginConversation(const RunningGroup& running, Branch& branch) {
    SequenceOptions limits{.plan = running.group.plans[branch.asked.front().plan_idx],
                           .prompt_tokens = static_cast<int64_t>(running.group.prompts.front().size())};
    for (const auto& prompt : running.group.prompts) {
      limits.max_tokens += static_cast<int64_t>(prompt.size()) + running.group.max_new_tokens;
    }
    HW_ASSIGN_OR_RETURN(branch.conversation, engine_.NewSequence(limits));
    return Ask(running, branch, branch.asked.front());
  }

  Status Begin(const RunningGroup& running, Branch& branch) {
    if (running.IsConversation()) return BeginConversation(running, branch);
    const size_t first_plan = branch.asked.front().plan_idx;
    const HeadPlan* const plan_read = running.group.plans[first_plan].get();
    const bool cuts_here = CutsByScore(plan_read) && running.group.turns == Turns::kOne;
    branch.prefix_tokens = branch.asked.size() == 1 || cuts_here ? 0 : CommonTokens(running, branch);
    // Plans that cut a text at its end in ways of their own part before its last token.
    if (running.group.turns == Turns::kLater && ReadsDensely(plan_read)) {
      branch.prefix_tokens = std::min(branch.prefix_tokens, running.group.text_tokens - 1);
    }
    if (branch.prefix_tokens == 0) {
      for (Asked& asked : branch.asked) HW_RETURN_IF_ERROR(Ask(running, branch, asked));
      return Status::Ok();
    }
    std::shared_ptr<const HeadPlan> plan = running.group.plans[first_plan];
    if (SharesDensePrefix(plan.get())) plan = nullptr;
    HW_ASSIGN_OR_RETURN(branch.prefix, engine_.NewSequence(LimitsOf(running, std::move(plan))));
    Request request;
    const std::vector<int32_t>& prompt = running.group.prompts[branch.asked.front().prompt_idx];
    request.prompt.assign(prompt.begin(), prompt.begin() + branch.prefix_tokens);
    request.sequence = branch.prefix;
    request.max_new_tokens = 0;
    HW_ASSIGN_OR_RETURN(branch.prefix_id, engine_.Submit(std::move(request)));
    return Status::Ok();
  }

  Status Ask(const RunningGroup& running, const Branch& branch, Asked& asked) {
    const std::vector<int32_t>& prompt = running.group.prompts[asked.prompt_idx];
    const auto prompt_tokens = static_cast<int64_t>(prompt.size());
    const std::shared_ptr<const HeadPlan>& plan = running.group.plans[asked.plan_idx];
    Request request;
    request.prompt.assign(prompt.begin() + branch.prefix_tokens, prompt.end());
    request.max_new_tokens = running.group.max_new_tokens;
    request.stop = running.group.stop;
    const SequenceOptions options{.plan = plan,
                                  .prompt_tokens = running.FirstTurn(prompt_tokens),
                                  .max_tokens = prompt_tokens + running.group.max_new_tokens};
    if (branch.conversation != nullptr) {
      request.sequence = branch.conversation;
    } else if (branch.prefix == nullptr && running.group.turns == Turns::kOne) {
      request.plan = plan;
    } else if (branch.prefix == nullptr) {
      HW_ASSIGN_OR_RETURN(request.sequence, engine_.NewSequence(options));
    } else if (ReadsDensely(plan.get())) {
      HW_ASSIGN_OR_RETURN(request.sequence, engine_.Fork(*branch.prefix, options));
    } else {
      HW_ASSIGN_OR_RETURN(request.sequence, engine_.Fork(*branch.prefix));
    }
    HW_ASSIGN_OR_RETURN(asked.id, engine_.Submit(std::move(request)));
    return Status::Ok();
  }

  bool IsDone(RequestId id) const { return engine_.Peek(id)->finish != FinishReason::kRunning; }

  // One branch after the other, so that no more than one plan's cache is held for a group: asks where the first tokens
  // are read, hands over what is answered, begins the next branch.
  Status Advance(RunningGroup& running) {
    Branch& branch = running.branches.front();
    if (branch.prefix_id != 0 && IsDone(branch.prefix_id)) {
      HW_ASSIGN_OR_RETURN(const RequestResult read, engine_.Take(std::exchange(branch.prefix_id, 0)));
      HW_RETURN_IF_ERROR(read.status);
      branch.prefix_peak_bytes = read.metrics.kv_peak_bytes;
      for (Asked& asked : branch.asked) HW_RETURN_IF_ERROR(Ask(running, branch, asked));
    }
    for (auto it = branch.asked.begin(); it != branch.asked.end();) {
      if (it->id == 0 || !IsDone(it->id)) {
        ++it;
        continue;
      }
      const Asked asked = *it;
      it = branch.asked.erase(it);
      HW_RETURN_IF_ERROR(Deliver(running, branch, asked));
      if (branch.conversation == nullptr || it == branch.asked.end()) continue;
      HW_RETURN_IF_ERROR(Ask(running, branch, *it));
    }
    if (!branch.asked.empty()) return Status::Ok();
    running.branches.erase(running.branches.begin());
    return running.branches.empty() ? Status::Ok() : Begin(running, running.branches.front());
  }

  Status Deliver(const RunningGroup& running, const Branch& branch, const Asked& asked) {
    HW_ASSIGN_OR_RETURN(RequestResult result, engine_.Take(asked.id));
    HW_RETURN_IF_ERROR(result.status);
    AskedAnswer answer{.group_idx = running.group_idx,
                       .prompt_idx = asked.prompt_idx,
                       .plan_idx = asked.plan_idx,
                       .text = std::move(result.text),
                       .metrics = result.metrics};
    answer.metrics.prompt_tokens += branch.prefix_tokens;
    answer.metrics.kv_peak_bytes = std::max(answer.metrics.kv_peak_bytes, branch.prefix_peak_bytes);
    // Of a conversation that goes on where an earlier run was stopped some are there already.
    if (!options_.wants(answer.group_idx, answer.prompt_idx, answer.plan_idx)) return Status::Ok();
    return options_.on_answer(answer);
  }

  Engine& engine_;
  const AskOptions& options_;
  int64_t next_group_ = 0;
  std::list<RunningGroup> running_;
};

}  // namespace

Status AskAll(Engine& engine, const AskOptions& options) {
  if (options.batch < 1) {
    return Status::InvalidInput(fmt::format("batch is {}, expected at least 1", options.batch));
  }
  Asker asker(engine, options);
  Status status = asker.Run();
  asker.Abandon();
  if (status.code() != StatusCode::kOutOfMemory || options.batch == 1) return status;
  return Status::OutOfMemory(
      fmt::format("{}; a --batch below {} holds fewer texts at a time", status.message(), options.batch));
}

}  // namespace headwise
