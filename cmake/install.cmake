# What `cmake --install` and so every package and image holds. The model comes without what only its tests read.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
install(TARGETS nibble)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/models/nibble-tiny DESTINATION share/nibble/models
  PATTERN goldens.json EXCLUDE PATTERN heldout.txt EXCLUDE)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION share/doc/nibble)
install(CODE "execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/notices.py COMMAND_ERROR_IS_FATAL ANY
  OUTPUT_FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/nibble/THIRD-PARTY-NOTICES\")")
