#pragma once
// This process's card, the first that it sees, as one rank of a group of processes, here or on several machines: they
// share every step, and sum and gather by NCCL (comm/nccl_comm.h). Who they are and that they belong together is
// another's to say (backend/ranks).

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nibble::backend::cuda {

class Comm;

// "NCCL 2.28.3". Throws Error(kUnsupported) where this build or this system has none, and says what to install.
[[nodiscard]] std::string nccl_version();

// What the cards of a group must have alike, because each rank routes and draws by itself: "sm_90, 132
// multiprocessors". And the card's own name among all machines'. Throw Error(kUnsupported) where there is none.
[[nodiscard]] std::string kind_of_card();
[[nodiscard]] std::string id_of_card();

// By which the ranks of a group meet; one of them makes it and tells the others. Throws as nccl_version() does, and
// Error(kDevice).
[[nodiscard]] std::vector<std::byte> new_card_group_id();

class CardGroup {
 public:
  struct Place {
    int rank = 0, ranks = 1;
    std::span<const std::byte> id;
  };
  // Waits until all ranks have come; one that never comes is not noticed here. Throws Error(kUnsupported), and
  // Error(kDevice) for what NCCL refuses.
  explicit CardGroup(const Place& place);
  // REQUIRES that the backend on it is gone.
  ~CardGroup();
  CardGroup(const CardGroup&) = delete;
  CardGroup& operator=(const CardGroup&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] const Comm& comm() const;

  // Another rank has gone: what waits for it on the card ends, and the backend's calls throw Error(kDevice). From any
  // thread.
  void give_up() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::backend::cuda
