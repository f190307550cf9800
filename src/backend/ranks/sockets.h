#pragma once
// TCP for ranks of several processes: plain sockets that never block. Whoever uses them waits with poll().

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace nibble::backend {

struct Address {
  std::string host;
  int port = 0;
};
[[nodiscard]] std::string text_of(const Address& address);  // host:port

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  [[nodiscard]] int fd() const { return fd_; }
  void shut() const;  // whoever reads or writes it finds its end

 private:
  int fd_ = -1;
};

// Listens on the host's address where that is one of this machine; else, as behind a name that several machines share,
// on all. `at`: where it does. Throws Error(kIo).
struct Listener {
  Socket socket;
  Address at;
};
[[nodiscard]] Listener listen_at(const Address& address);

struct Accepted {
  Socket socket;
  std::string from;  // host:port
};
// None: nobody waits.
[[nodiscard]] std::optional<Accepted> accept_one(const Socket& listener);

// Whether both ends of a connection are this one: TCP allows it where the port that the system chose for the caller is
// the one that is called and nobody listens there yet. It would keep the listener from its port.
[[nodiscard]] bool meets_itself(const Socket& socket);

// Throws Error(kIo) where nobody answers in that time.
[[nodiscard]] Socket connect_to(const Address& address, std::chrono::milliseconds timeout);

enum class ReadState : uint8_t { kSome, kNothingYet, kClosed };
struct ReadResult {
  ReadState state;
  size_t count = 0;
};
[[nodiscard]] ReadResult read_some(const Socket& socket, std::span<std::byte> into);
// How many bytes went out at once; none: the connection is closed.
[[nodiscard]] std::optional<size_t> write_some(const Socket& socket, std::span<const std::byte> bytes);
// Whether it takes or, for writing, would take something within that time.
enum class Ready : uint8_t { kToRead, kToWrite };
[[nodiscard]] bool wait_until(const Socket& socket, Ready what, std::chrono::milliseconds timeout);

}  // namespace nibble::backend
