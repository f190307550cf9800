#pragma once
// config.json of an EAGLE-3 head as typed, range-checked values. Two spellings exist: a Llama configuration with an
// eagle_config (SafeAILab/EAGLE, SpecForge, NVIDIA), and the speculators format, which keeps the layer's keys in
// transformer_layer_config. A P-EAGLE head is one that has a mask token.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::checkpoint {

// What the ids of layers of a head mean: the output of layer i, or the boundary before layer i. Heads do not say; auto:
// a list that ends with the number of layers names boundaries, any other outputs.
enum class TapReading : uint8_t { kAuto, kOutputs, kBoundaries };

enum class Eagle3Rope : uint8_t { kPlain, kLlama3, kYarn };

struct Eagle3Config {
  std::string where;  // as parse_eagle3_config was told
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;        // of the target
  int64_t draft_vocab_size = 0;  // of the head; vocab_size where the file names none
  int64_t target_hidden_size = 0;
  double rms_norm_eps = 0;
  double logit_scale = 1;
  std::optional<int64_t> sliding_window = {};  // keys that a query sees, its own included; none: all
  bool qkv_bias = false, o_bias = false, mlp_bias = false;

  Eagle3Rope rope = Eagle3Rope::kPlain;
  double rope_theta = 0;
  double rope_factor = 1;                                      // kLlama3, kYarn
  int64_t rope_original_context = 0;                           // kLlama3, kYarn
  double rope_low_freq_factor = 0, rope_high_freq_factor = 0;  // kLlama3
  double rope_beta_fast = 32, rope_beta_slow = 1;              // kYarn
  bool rope_truncate = true;                                   // kYarn

  bool use_aux_hidden_state = true;                    // false: reads the target's last state, after its final norm
  std::optional<std::vector<int64_t>> layer_ids = {};  // that it reads; none: the default, which depends on the target
  int64_t num_aux_hidden_states = 0;                   // how many it reads
  bool norm_before_fc = false;                         // one norm over all of them
  bool fc_norm = false;                                // a norm for each
  bool norm_before_residual = false;
  bool norm_output = false;  // what is fed back has been normed

  // P-EAGLE: stands for tokens that are not known yet, of which all guesses but the first are made in one pass. None:
  // the head drafts one token after another.
  std::optional<int64_t> mask_token_id = {};
};

// Throws Error(kUnsupported) for another kind of model, a key that is not known here or a value that nothing here
// computes, and Error(kCorrupt) for a missing key, a wrong type or a value out of range; each names `where`, the key,
// and what was wanted and found.
[[nodiscard]] Eagle3Config parse_eagle3_config(std::string_view text, std::string_view where);

// Reads config.json of the directory; also Error(kIo).
[[nodiscard]] Eagle3Config read_eagle3_config(const std::filesystem::path& directory);

}  // namespace nibble::checkpoint
