# nibble_room(<name> SOURCES … [DEPS …] [TESTS …] [BY_ISA]): a room's library and its unit-test program.
add_library(nibble_flags INTERFACE)
target_compile_options(nibble_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor>
  # Errors with the compilers that the tests run with: later ones know other warnings.
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Werror>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,20>>:-Werror>
  # libstdc++ 12's stable_sort calls what that library deprecates.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>
  # Constexpr functions of base/ serve the device too; line numbers for compute-sanitizer and profilers.
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Werror=all-warnings;-Xcompiler=-Wall,-Wextra>)
target_include_directories(nibble_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(nibble_flags INTERFACE NIBBLE_VERSION="${PROJECT_VERSION}")
if(NIBBLE_SANITIZE)
  target_compile_options(nibble_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${NIBBLE_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE})
endif()
if(NIBBLE_BUILD_FUZZERS)
  target_compile_options(nibble_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

function(nibble_room name)
  cmake_parse_arguments(ROOM "BY_ISA" "" "SOURCES;DEPS;TESTS" ${ARGN})
  add_library(nibble_${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(nibble_${name} PUBLIC nibble_flags fmt::fmt ${ROOM_DEPS})
  if(NIBBLE_BUILD_TESTS AND ROOM_TESTS)
    set(by_isa)
    if(ROOM_BY_ISA)
      set(by_isa BY_ISA)
    endif()
    nibble_test(${name}_test SOURCES ${ROOM_TESTS} DEPS nibble_${name} ${by_isa})
  endif()
endfunction()

# What tests that depend on the instruction set run as, besides what the machine has: values of NIBBLE_CPU_MASK
# (docs/measuring.md).
set(NIBBLE_CPU_MASKS)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(NIBBLE_CPU_MASKS avx2)
endif()

# nibble_masked_tests(<name> ENVIRONMENT … COMMAND …): a test for each of NIBBLE_CPU_MASKS.
function(nibble_masked_tests name)
  cmake_parse_arguments(T "" "" "COMMAND;ENVIRONMENT" ${ARGN})
  foreach(mask IN LISTS NIBBLE_CPU_MASKS)
    add_test(NAME ${name}_as_${mask} COMMAND ${T_COMMAND})
    set_tests_properties(${name}_as_${mask} PROPERTIES ENVIRONMENT "NIBBLE_CPU_MASK=${mask};${T_ENVIRONMENT}" TIMEOUT 1200)
  endforeach()
endfunction()

# nibble_test(<name> SOURCES … DEPS … [LABEL …] [BY_ISA]): tests find their data through NIBBLE_SOURCE_DIR. BY_ISA: they
# depend on the CPU backend's instruction set, heed NIBBLE_CPU_MASK, and run under each of NIBBLE_CPU_MASKS, too.
function(nibble_test name)
  cmake_parse_arguments(T "BY_ISA" "LABEL" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_DEPS} GTest::gmock GTest::gtest)
  if(T_BY_ISA)
    target_link_libraries(${name} PRIVATE cpu_mask_main)
    nibble_masked_tests(${name} COMMAND ${name} --gtest_brief=1)
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  target_compile_definitions(${name} PRIVATE NIBBLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600 LABELS "${T_LABEL}")
endfunction()
