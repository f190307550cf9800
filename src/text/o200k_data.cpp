// The vocabulary's bytes: the assembler copies the file, whose name NIBBLE_O200K_FILE comes from CMake, into the
// read-only section. Apart from its readers, since ccache keeps no such object.
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
