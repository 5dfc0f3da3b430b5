# The build id that client and daemon compare: version plus a digest of the sources' git state.
# It is a file of its own, so that a new commit recompiles one source file only.

find_package(Git QUIET)
set(MK_GIT_REVISION "unknown")
if(GIT_FOUND)
  execute_process(
    COMMAND "${GIT_EXECUTABLE}" -C "${PROJECT_SOURCE_DIR}" describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE MK_GIT_REVISION OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    RESULT_VARIABLE MK_GIT_STATUS)
  if(NOT MK_GIT_STATUS EQUAL 0)
    set(MK_GIT_REVISION "unknown")
  endif()
endif()
