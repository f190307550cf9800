#include "app/help.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nibble::app {
namespace {

constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
    {"", R"(  nibble run -m models/nibble-tiny -p "Once upon a time"
  nibble pull openai/gpt-oss-20b
  nibble chat gpt-oss-20b --reasoning low
  nibble serve openai/gpt-oss-20b --port 8000
  nibble inspect -m gpt-oss-120b --load-format dummy)"},
    {"run", R"(  nibble run -m models/nibble-tiny -p "Once upon a time" -n 100 --temperature 0.7)"},
    {"chat", R"(  nibble chat -m models/nibble-tiny -p "What is the capital of France?")"},
    {"serve", R"(  nibble serve openai/gpt-oss-20b --host 0.0.0.0 --api-key secret

Every flag can be set by a variable: NIBBLE_PORT for --port. The command line comes before the environment,
and the environment before --config. vLLM's flags and variables are understood: docs/serving.md.)"},
    {"inspect", R"(  nibble inspect -m ~/gpt-oss-20b --context 8192
  nibble inspect -m gpt-oss-120b --load-format dummy --plan --backend cuda -b 1,8,32 -p 512,8192 -d 0,32768
  nibble inspect -m gpt-oss-120b --load-format dummy --plan --backend cuda --card gb10 --mxfp4-layers all)"},
    {"tokenize", R"(  nibble tokenize -p "Hello, world"
  nibble tokenize -m models/nibble-tiny --count -f README.md
  nibble tokenize --decode -p "13225 11 2375")"},
    {"quantize", R"(  nibble quantize ~/gpt-oss-20b-bf16 -o ~/gpt-oss-20b
  nibble quantize in.safetensors -o out.safetensors --format mxfp8_e4m3 --tensors "*.weight")"},
    {"pull", R"(  nibble pull openai/gpt-oss-20b
  nibble pull ggml-org/gpt-oss-20b-GGUF
  nibble pull openai/gpt-oss-120b --include "original/*"

What is there already is not fetched again, and what was cut goes on where it stopped. HF_HOME says where models are
kept, HF_TOKEN who asks, HF_ENDPOINT whom; https_proxy and HF_HUB_OFFLINE are heeded: docs/models.md.)"},
    {"list", "  nibble list --json"},
    {"rm", R"(  nibble rm openai/gpt-oss-20b
  nibble rm ggml-org/gpt-oss-20b-GGUF --revision main -y)"},
    {"synth", R"(  nibble synth --preset gpt-oss-20b --layers 2 -o ~/gpt-oss-20b-2
  nibble synth --preset tiny -o tiny.gguf)"},
    {"convert", R"(  nibble convert -m models/nibble-tiny -o tiny.gguf
  nibble convert -m ~/gpt-oss-120b -o gpt-oss-120b.gguf --dense bf16 --part-bytes 50000000000)"},
    {"perplexity",
     R"(  nibble perplexity -m models/nibble-tiny -f models/nibble-tiny/heldout.txt --kv-cache-dtype fp8)"},
    {"compare", R"(  nibble compare -m models/nibble-tiny --a reference --b cpu)"},
    {"bench", R"(  nibble bench -m gpt-oss-20b --load-format dummy -p 512,2048 -n 128 -d 0,4096 -b 1,8
  nibble bench -m gpt-oss-120b --load-format dummy --backend cuda -p 0 -n 64 -b 1,2,4,8 --mxfp4-layers all --json
  nibble bench -m ~/gpt-oss-20b -p 0 -n 64 -d 32768 --profile)"}};

constexpr std::string_view kExitCodes =
    R"(Exit codes: 0 done · 1 internal error · 2 bad command line or request · 3 not supported here · 4 corrupt file ·
  5 file or system error · 6 out of memory · 7 device error · 8 compare found a difference · 130 interrupted)";

}  // namespace

std::string help_footer(std::string_view command) {
  const auto* const it = std::ranges::find(kExamples, command, &std::pair<std::string_view, std::string_view>::first);
  check(it != std::end(kExamples), "every command has examples");
  return fmt::format("Examples:\n{}\n\n{}", it->second, kExitCodes);
}

}  // namespace nibble::app
