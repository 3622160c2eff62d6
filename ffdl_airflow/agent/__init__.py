"""The program that runs in every replica. Standard library only, Python 3.8 or newer.

The controller may import :mod:`ffdl_airflow.agent.protocol` and nothing else from here.
"""
