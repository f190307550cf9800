#pragma once
// Where ranks write to each other (README.md): the arithmetic of the protocols, which kernels share with the tests that
// walk through their interleavings.

#include <cstdint>

namespace nibble::backend::cuda {

inline constexpr int kMaxPushRanks = 8;

// A push.

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

// Shares.

// A message is dealt to its ranks in chunks, one after the other: chunk c is added up by rank c % ranks.
inline constexpr int64_t kChunkWords = 4096;  // of 32 bits; what a CTA takes at a time

// What the others write on a rank's card, in words of 64 bits:
// parts [ranks, by sender][chunks of the rank][kChunkWords / 2]
// part flags [ranks, by sender][chunks of the rank] {round, where the sender's values begin}
// sum flags [chunks] round
struct ShareShape {
  int64_t chunks = 0;  // of a message at the most; a multiple of ranks
  int ranks = 2;

  [[nodiscard]] constexpr int64_t words() const { return chunks * kChunkWords; }
  [[nodiscard]] constexpr int owner(int64_t chunk) const {
    return static_cast<int>(static_cast<uint32_t>(chunk) % static_cast<uint32_t>(ranks));
  }
  [[nodiscard]] constexpr int64_t first_part(int sender, int64_t chunk) const {
    return place(sender, chunk) * (kChunkWords / 2);
  }
  [[nodiscard]] constexpr int64_t part_flag(int sender, int64_t chunk) const {
    return chunks * (kChunkWords / 2) + 2 * place(sender, chunk);
  }
  [[nodiscard]] constexpr int64_t sum_flag(int64_t chunk) const { return chunks * (kChunkWords / 2 + 2) + chunk; }
  [[nodiscard]] constexpr int64_t bytes() const { return 8 * sum_flag(chunks); }

 private:
  [[nodiscard]] constexpr int64_t place(int sender, int64_t chunk) const {
    const auto by = static_cast<uint32_t>(ranks);  // 32 bits divide fast
    return sender * int64_t{static_cast<uint32_t>(chunks) / by} + static_cast<uint32_t>(chunk) / by;
  }
};

// 48 MB, a prompt's step of 8192 tokens in bf16, or a little more; longer values go in several messages.
[[nodiscard]] constexpr ShareShape share_shape(int ranks) {
  constexpr int64_t kChunks = 3072;
  return {.chunks = (kChunks + ranks - 1) / ranks * ranks, .ranks = ranks};
}

[[nodiscard]] constexpr int64_t chunks_of(int64_t words) { return (words + kChunkWords - 1) / kChunkWords; }

// Memory on each card of two ranks that exchange their parts of a message whole (README.md): [sums][ranks] of a part,
// bf16; a message's parts lie side by side.
inline constexpr int kExchangedSums = 2;  // of a layer
struct ExchangeShape {
  int64_t words = 0;  // of a part at most, 32 bits each
  [[nodiscard]] constexpr int64_t bytes() const { return 4 * kExchangedSums * 2 * words; }
};
// As long parts as shares take.
[[nodiscard]] constexpr ExchangeShape exchange_shape(int ranks) {
  return {.words = ranks == 2 ? share_shape(ranks).words() : 0};
}
struct Exchange {
  uint32_t* memory[2] = {};  // of each rank, by rank
  ExchangeShape shape;
  int rank = 0;
  // Where a card has both parts of a message of the sum-th sum of a layer.
  [[nodiscard]] constexpr uint32_t* both(int card, int sum) const {
    return memory[card] == nullptr ? nullptr : memory[card] + sum * 2 * shape.words;
  }
};

// Where a kernel puts a rank's part of a message as it makes it, so that all is sent when the ranks' sum begins: what
// the rank adds up itself stays among its values, the rest goes to the boxes of those who do. Of parts that are
// exchanged, to its place on both cards. The kernel may begin when the sum before has ended, and has ended when this
// one begins.
struct PartPlaces {
  uint64_t* boxes[kMaxPushRanks] = {};  // of each rank, by rank
  ShareShape shape;                     // no chunks: nothing is sent
  int rank = 0;
  uint32_t *own = nullptr, *others = nullptr;  // exchanged: the part's place on the rank's card, on the other's

  // The places of a part of so many words.
  [[nodiscard]] static constexpr PartPlaces exchanged(const Exchange& exchange, int sum, int64_t words) {
    PartPlaces places;
    places.rank = exchange.rank;
    if (exchange.memory[0] == nullptr) return places;
    places.own = exchange.both(exchange.rank, sum) + exchange.rank * words;
    places.others = exchange.both(1 - exchange.rank, sum) + exchange.rank * words;
    return places;
  }
  [[nodiscard]] constexpr bool sends() const { return shape.chunks != 0 || own != nullptr; }
  // Where a message's 256 bytes number `block` go.
  static constexpr int64_t kBlockWords = 64, kChunkBlocks = kChunkWords / kBlockWords;
  [[nodiscard]] constexpr uint32_t* place(uint32_t* values, int64_t block) const {
    if (own != nullptr) return own + block * kBlockWords;
    if (!sends()) return values + block * kBlockWords;
    const int64_t chunk = block / kChunkBlocks;
    const int owner = shape.owner(chunk);
    if (owner == rank) return values + block * kBlockWords;
    return reinterpret_cast<uint32_t*>(boxes[owner] + shape.first_part(rank, chunk)) +
           block % kChunkBlocks * kBlockWords;
  }
  // Where else it goes; null: nowhere.
  [[nodiscard]] constexpr uint32_t* copy(int64_t block) const {
    return others == nullptr ? nullptr : others + block * kBlockWords;
  }
};

// Bytes of a rank's mailbox, box and exchange.
[[nodiscard]] constexpr int64_t comm_bytes(int ranks) {
  return MailboxShape{kMessageWords, ranks}.bytes() + share_shape(ranks).bytes() + exchange_shape(ranks).bytes();
}

}  // namespace nibble::backend::cuda
