#include "text/o200k.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

// NIBBLE_O200K_FILE comes from CMake. The file is data: the assembler copies it into the read-only section.
asm(".section .rodata\n"
    ".global nibble_o200k_begin\n"
    ".global nibble_o200k_end\n"
    ".hidden nibble_o200k_begin\n"
    ".hidden nibble_o200k_end\n"
    "nibble_o200k_begin:\n"
    ".incbin \"" NIBBLE_O200K_FILE
    "\"\n"
    "nibble_o200k_end:\n"
    ".byte 0\n"
    ".text\n");

namespace nibble::text {

extern const char kRanksBegin[] asm("nibble_o200k_begin");
extern const char kRanksEnd[] asm("nibble_o200k_end");

namespace {

struct Named {
  int32_t id;
  std::string_view name;
};

constexpr int32_t kFirst = 199998, kLast = 201087, kEndOfPrompt = 200018;
constexpr std::array<Named, 10> kNamed = {{{199998, "startoftext"},
                                           {199999, "endoftext"},
                                           {200002, "return"},
                                           {200003, "constrain"},
                                           {200005, "channel"},
                                           {200006, "start"},
                                           {200007, "end"},
                                           {200008, "message"},
                                           {200012, "call"},
                                           {kEndOfPrompt, "endofprompt"}}};

}  // namespace

std::string_view o200k_ranks() { return {kRanksBegin, static_cast<size_t>(kRanksEnd - kRanksBegin)}; }

std::vector<AddedToken> o200k_harmony_specials() {
  std::vector<AddedToken> tokens;
  size_t named = 0;
  for (int32_t id = kFirst; id <= kLast; ++id) {
    const bool has_name = named < kNamed.size() && kNamed[named].id == id;
    if (has_name) tokens.push_back({id, fmt::format("<|{}|>", kNamed[named++].name)});
    if (!has_name || id == kEndOfPrompt) tokens.push_back({id, fmt::format("<|reserved_{}|>", id)});
  }
  return tokens;
}

}  // namespace nibble::text
