#pragma once
// Which grammar a request asks for, as a mask for the engine.

#include "engine/request.h"
#include "server/schema.h"
#include "text/grammar.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace nibble::server {

// Makes a mask per answer, of which at most `room` tokens may come; empty: the request needs none.
using MaskSource = std::function<std::shared_ptr<engine::TokenMask>(int64_t room)>;

// A turn with tools calls them by name and with arguments that follow their schemas; a schema that the grammar cannot
// express binds only a strict tool (an ApiError says so), another one's arguments are any JSON object. A turn that must
// end in a call or in JSON, or that was given a budget, reasons within it and within half the room. Throws ApiError.
[[nodiscard]] MaskSource turn_mask(const text::GrammarCompiler& compiler, const TurnRequest& turn);
// The text alone, for completions.
[[nodiscard]] MaskSource text_mask(const text::GrammarCompiler& compiler, const OutputFormat& format,
                                   const std::vector<int32_t>& end_ids);

}  // namespace nibble::server
