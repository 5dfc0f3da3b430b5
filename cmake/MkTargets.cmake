# Compiler settings shared by every target, and the two functions that make targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

# mk and microkimid side by side, so that mk finds the daemon to start.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

find_program(MK_CCACHE ccache)
if(MK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${MK_CCACHE}")
endif()

find_package(Threads REQUIRED)

add_library(mk_flags INTERFACE)
target_include_directories(mk_flags INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
target_link_libraries(mk_flags INTERFACE Threads::Threads)
# -ffp-contract=off: kernels ask for fused multiply-add where they mean it; everywhere else a
# product and a sum round twice, so that results do not depend on the optimiser.
target_compile_options(mk_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                                          -ffp-contract=off)
if(MK_WERROR)
  target_compile_options(mk_flags INTERFACE -Werror)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  # -O3 for the kernels' inner loops; -g1 keeps symbols for profiles and back traces.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1")
elseif(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
endif()
if(MK_HARDENED)
  target_compile_definitions(mk_flags INTERFACE _GLIBCXX_ASSERTIONS)
endif()
foreach(sanitizer IN LISTS MK_SANITIZE)
  target_compile_options(mk_flags INTERFACE -fsanitize=${sanitizer} -fno-omit-frame-pointer
                                            -fno-sanitize-recover=all)
  target_link_options(mk_flags INTERFACE -fsanitize=${sanitizer})
endforeach()

# mk_library(NAME SOURCES ... DEPS ...): a static library with the project's flags.
function(mk_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
  else()
    file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/${name}_empty.cc" "")
    add_library(${name} STATIC "${CMAKE_CURRENT_BINARY_DIR}/${name}_empty.cc")
  endif()
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE mk_flags)
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
endfunction()

# mk_test(NAME SOURCES ... DEPS ... [LABELS ...]): a GoogleTest binary, one ctest entry.
function(mk_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} mk_flags GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    MK_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" MK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
