#pragma once
// For tests of groups: places on this machine.

#include "backend/ranks/process_group.h"

#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace nibble::backend {

// A port that was free just now, and below those that the system gives away: else any other program might get it.
inline int free_port() {
  constexpr int kFirst = 20000, kCount = 10000;
  static int next = static_cast<int>(getpid() * 37L % kCount);
  for (int tried = 0; tried < kCount; ++tried) {
    const int port = kFirst + next;
    next = (next + 1) % kCount;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    if (free) return port;
  }
  ADD_FAILURE() << "no port is free";
  return 0;
}

inline GroupPlace place_of(int count) {
  return {.rank = 0,
          .count = count,
          .first = {"127.0.0.1", free_port()},
          .join_timeout = std::chrono::seconds(60),
          .terms = {{"version", "1"}, {"model", "some"}}};
}
inline GroupPlace at_rank(GroupPlace place, int rank) {
  place.rank = rank;
  return place;
}

// What a rank says first, byte for byte.
inline std::vector<std::byte> hello_frame(const GroupPlace& place) {
  BodyWriter hello;
  hello.field(uint32_t{3});
  hello.field(static_cast<int32_t>(place.rank));
  hello.field(static_cast<int32_t>(place.count));
  hello.field(static_cast<uint32_t>(place.terms.size()));
  for (const GroupTerm& term : place.terms) {
    hello.text(term.name);
    hello.text(term.value);
  }
  return framed(FrameType::kHello, hello.bytes());
}

}  // namespace nibble::backend
