#pragma once
// Conversation → Harmony: the prompt that gpt-oss reads. Token for token what openai-harmony 0.0.8 renders.

#include "text/conversation.h"
#include "text/harmony_tokens.h"

#include <string>
#include <vector>

namespace nibble::text {

// A conversation that begins with these; a developer message only where it says something.
[[nodiscard]] Conversation conversation_of(SystemOptions system, DeveloperOptions developer,
                                           const std::vector<Message>& history);

// The conversation and the opening `<|start|>assistant` of the turn to generate. Every message ends with <|end|>, or
// <|call|> for an assistant message with a recipient; a stored <|return|> does not exist.
// When the last assistant message is final, analysis messages before the *first* final of the conversation are left
// out. So a running chain of tool calls keeps its reasoning, and (a quirk that the model's authors ship) analysis
// between later finals stays.
// Throws kInvalidRequest: a tool message without a name, system or developer content in another role, a schema that
// nests too deeply.
[[nodiscard]] std::vector<Segment> render_for_completion(const Conversation& conversation);

// The texts of a system and a developer message.
enum class FunctionTools { kAbsent, kPresent };
[[nodiscard]] std::string system_text(const SystemOptions& options, FunctionTools functions);
[[nodiscard]] std::string developer_text(const DeveloperOptions& options);

}  // namespace nibble::text
