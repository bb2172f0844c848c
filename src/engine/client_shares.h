// How much steps have done for whom, so that one client's many requests do not take all of them.
#ifndef HEADWISE_ENGINE_CLIENT_SHARES_H_
#define HEADWISE_ENGINE_CLIENT_SHARES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace headwise {

// Virtual counters of tokens, one for each client [vtc: Sheng et al. 2024]: who has been served least comes first. Who
// comes back, or comes for the first time, begins where the least served of those present is: time away is no credit.
//
// Thread-safety: the engine's thread.
class ClientShares : public std::enable_shared_from_this<ClientShares> {
  struct Share {
    int64_t served = 0;
    int64_t num_requests = 0;
  };
  using Shares = std::map<std::string, Share>;

 public:
  // A request's part in its client's share, as long as it is there.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept : of_(std::move(other.of_)), share_(other.share_) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(share_, other.share_);
      return *this;
    }
    ~Ticket() {
      if (of_ != nullptr) of_->End(share_);
    }
    void Serve(int64_t num_tokens) {
      if (of_ != nullptr) share_->second.served += num_tokens;
    }
    // Tokens of all requests of its client, counted from a beginning that clients share.
    int64_t served() const { return of_ == nullptr ? 0 : share_->second.served; }

   private:
    friend class ClientShares;
    std::shared_ptr<ClientShares> of_;
    Shares::iterator share_{};
  };

  Ticket Begin(const std::string& client) {
    const auto [share, is_new] = shares_.try_emplace(client);
    if (share->second.num_requests == 0) share->second.served = std::max(share->second.served, LeastServed());
    Ticket ticket;
    ticket.of_ = shared_from_this();
    ticket.share_ = share;
    ++share->second.num_requests;
    return ticket;
  }
  size_t num_clients() const { return shares_.size(); }

 private:
  // So many are remembered, whether they have requests or not.
  static constexpr size_t kMostRemembered = 1024;

  int64_t LeastServed() const {
    int64_t least = 0;
    bool has_any = false;
    for (const auto& [client, share] : shares_) {
      if (share.num_requests == 0) continue;
      least = has_any ? std::min(least, share.served) : share.served;
      has_any = true;
    }
    return least;
  }
  void End(Shares::iterator share) {
    if (--share->second.num_requests == 0 && shares_.size() > kMostRemembered) shares_.erase(share);
  }

  Shares shares_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_CLIENT_SHARES_H_
