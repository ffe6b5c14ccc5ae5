from everthread.adapters.sqlite.connection import SqliteDatabase
from everthread.store.database import Table


class Numbers(Table):
    """A table group with the helpers made public."""

    def find(self, number: int) -> object:
        return self._first("SELECT n, n * 2 FROM numbers WHERE n = ?", (number,))

    def has(self, number: int) -> bool:
        return self._exists("SELECT 1 FROM numbers WHERE n = ?", (number,))

    def count(self) -> int:
        return self._value("SELECT COUNT(*) FROM numbers")


def test_a_table_reads_a_row_its_existence_and_a_value(database: SqliteDatabase) -> None:
    database.execute("CREATE TABLE numbers (n INTEGER)")
    database.execute("INSERT INTO numbers (n) VALUES (3), (4)")
    numbers = Numbers(database)
    assert (numbers.find(3), numbers.find(5)) == ((3, 6), None)
    assert (numbers.has(4), numbers.has(5)) == (True, False)
    assert numbers.count() == 2
