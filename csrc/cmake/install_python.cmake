# Installs the Python files alone, without pip: staticrt/{passes,ops,models} are folders of the top level.
#
#   cmake -DCMAKE_INSTALL_PREFIX=build/types -P csrc/cmake/install_python.cmake
set(_root "${CMAKE_CURRENT_LIST_DIR}/../..")
file(INSTALL "${_root}/staticrt" DESTINATION "${CMAKE_INSTALL_PREFIX}" MESSAGE_NEVER
  FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
file(INSTALL "${_root}/passes" "${_root}/ops" "${_root}/models" DESTINATION "${CMAKE_INSTALL_PREFIX}/staticrt" MESSAGE_NEVER
  FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
