#pragma once
// A group of processes, one rank each: how they find each other over TCP, that they belong together, and that each
// learns within seconds when another has gone. Rank 0 listens; the others come to it and know nobody else.
//
// A thread of the group reads all connections and sends a pulse every second. The group is lost when a connection is
// closed, silent for eight seconds or holds what no rank says; then every call throws Error(kIo) that says so, on every
// rank. Whoever else connects to rank 0's port is refused and disturbs nobody. There is no secret: the port is for a
// network whose machines are trusted.

#include "backend/ranks/frames.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::backend {

struct Address {
  std::string host;
  int port = 0;
};
[[nodiscard]] std::string text_of(const Address& address);  // host:port

// What all ranks must have alike.
struct GroupTerm {
  std::string name, value;
};

struct GroupPlace {
  int rank = 0, count = 1;
  Address first;                             // where rank 0 listens
  std::chrono::milliseconds join_timeout{};  // until all have come
  std::vector<GroupTerm> terms{};
};

// What may be empty, and may come from any thread.
struct GroupEvents {
  std::function<void(const std::string& text)> note{};  // who came, and who was refused
  std::function<void(const std::string& why)> lost{};   // once
};

class ProcessGroup {
 public:
  // Returns when all ranks have come or, on another rank than 0, when that one has taken it. Throws Error(kIo) where
  // that takes too long, and Error(kInvalidRequest) where rank 0 refuses this one.
  ProcessGroup(GroupPlace place, GroupEvents events);
  // Ends the group, or fails it where an exception is on its way.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int count() const;

  // To and from rank 0, or, there, any other. One thread at a time; both throw Error(kIo) once the group is lost.
  void send(int rank, FrameType type, std::span<const std::byte> body = {});
  void tell(FrameType type, std::span<const std::byte> body = {});  // rank 0's: to all others
  [[nodiscard]] Frame receive(int rank);
  // None: nothing has come in that time.
  [[nodiscard]] std::optional<Frame> receive_within(int rank, std::chrono::milliseconds time);

  void end();                         // the others get kEnd: the work is done
  void fail(const std::string& why);  // the group is lost, by this rank's fault

  [[nodiscard]] bool ended() const;                                // by end(), here or on rank 0
  void require() const;                                            // throws Error(kIo) where the group is lost
  [[nodiscard]] bool lost_within(std::chrono::milliseconds time);  // or is already

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::backend
