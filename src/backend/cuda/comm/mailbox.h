#pragma once
// Where ranks write to each other, and which round a word is of: the arithmetic of the push protocol (README.md). The
// kernels and the test that walks through its interleavings share it.

#include "backend/cuda/comm/share_box.h"

#include <cstdint>

namespace nibble::backend::cuda {

// Rounds count from 1 and never are 0, so that memory of zeros holds no word of any. After the last comes 2: rounds go
// on taking turns between odd and even.
inline constexpr uint32_t kFirstRound = 1, kLastRound = 0xffffffff;
[[nodiscard]] constexpr uint32_t round_after(uint32_t round, uint32_t last = kLastRound) {
  return round == last ? 2 : round + 1;
}

// Two are enough: who is in round n has had all others' words of round n - 1, so these have read those of n - 2.
inline constexpr int kPhases = 2;
[[nodiscard]] constexpr int phase_of(uint32_t round) { return static_cast<int>(round % kPhases); }

// A rank's mailbox: [phases][ranks, by sender][words]. A word: 32 bits of a message, and in its upper half the round.
struct MailboxShape {
  int64_t words = 0;  // of a message at the most; a multiple of kSweptWords
  int ranks = 2;
  [[nodiscard]] constexpr int64_t bytes() const { return int64_t{kPhases} * ranks * words * 8; }
  [[nodiscard]] constexpr int64_t first_word(int phase, int sender) const {
    return (int64_t{phase} * ranks + sender) * words;
  }
};

inline constexpr int64_t kMessageWords = int64_t{1} << 20;  // in one round; longer values go in several
// Bytes of a rank's mailbox, box and exchange.
[[nodiscard]] constexpr int64_t comm_bytes(int ranks) {
  return MailboxShape{kMessageWords, ranks}.bytes() + share_shape(ranks).bytes() + exchange_shape(ranks).bytes();
}

// What NCCL takes of a card's memory, about: two H200 of one host with its defaults; channels and sockets add to it.
inline constexpr int64_t kNcclCardBytes = int64_t{512} << 20;

[[nodiscard]] constexpr uint64_t tagged(uint32_t data, uint32_t round) { return uint64_t{round} << 32 | data; }
[[nodiscard]] constexpr bool is_of(uint64_t word, uint32_t round) { return word >> 32 == round; }
[[nodiscard]] constexpr uint32_t data_of(uint64_t word) { return static_cast<uint32_t>(word); }

// In each round a reader clears so many words of each sender, from here on, as far as the message does not reach them:
// else a word that no message reached for 2^32 rounds would pass for one of the round then.
inline constexpr int kSweptWords = 256;
[[nodiscard]] constexpr int64_t first_swept(uint32_t round, int64_t words) {
  return int64_t{round / kPhases} * kSweptWords % words;
}

}  // namespace nibble::backend::cuda
