#include "server/page.h"

#include <cstddef>

// NIBBLE_CHAT_PAGE_FILE comes from CMake (cmake/page.cmake), which joins the page. The file is data: the assembler
// copies it into the read-only section.
asm(".section .rodata\n"
    ".global nibble_chat_page_begin\n"
    ".global nibble_chat_page_end\n"
    ".hidden nibble_chat_page_begin\n"
    ".hidden nibble_chat_page_end\n"
    "nibble_chat_page_begin:\n"
    ".incbin \"" NIBBLE_CHAT_PAGE_FILE
    "\"\n"
    "nibble_chat_page_end:\n"
    ".byte 0\n"
    ".text\n");

namespace nibble::server {

extern const char kPageBegin[] asm("nibble_chat_page_begin");
extern const char kPageEnd[] asm("nibble_chat_page_end");

std::string_view chat_page() { return {kPageBegin, static_cast<size_t>(kPageEnd - kPageBegin)}; }

}  // namespace nibble::server
