#pragma once
// This process's card, the first that it sees, as one rank of a group of processes, here or on several machines: they
// share every step, and sum and gather by NCCL (comm/comm.h).

#include <memory>
#include <string>

namespace nibble::backend {
class ProcessGroup;
}

namespace nibble::backend::cuda {

class Comm;

// "NCCL 2.28.3". Throws Error(kUnsupported) where this build or this system has none, and says what to install.
[[nodiscard]] std::string nccl_version();

// What the cards of a group must have alike, because each rank routes and draws by itself: "sm_90, 132
// multiprocessors". And the card's own name among all machines'. Throw Error(kUnsupported) where there is none.
[[nodiscard]] std::string kind_of_card();
[[nodiscard]] std::string id_of_card();

class CardGroup {
 public:
  CardGroup();
  // REQUIRES that the backend on it is gone.
  ~CardGroup();
  CardGroup(const CardGroup&) = delete;
  CardGroup& operator=(const CardGroup&) = delete;

  // Once `group` is complete, on every rank: waits until all cards have come; one that never comes is not noticed here.
  // `card` names this one. Throws what agree_on_id() throws (ranks/followers.h), Error(kUnsupported), and
  // Error(kDevice) for what NCCL refuses.
  void meet(ProcessGroup& group, const std::string& card = id_of_card());
  [[nodiscard]] const Comm& comm() const;  // REQUIRES that they have met

  // Another rank has gone: what waits for it on the card ends, and the backend's calls throw Error(kDevice). From any
  // thread, also before they meet.
  void give_up();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::backend::cuda
